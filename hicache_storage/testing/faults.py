"""Scripted faults around any store, for tests of what uses a store.

    store = FaultyStore(MemoryStore(), [
        Fault("write", "lost_answer", nth=2),              # the second write
        Fault("read", "corrupt", key="a"),                 # every read of "a"
        Fault("stat", "raise", error=AccessDenied("no")),  # every stat
    ])
    ...
    assert store.calls == [Call("write", "a"), Call("read", "a")]

Nothing here waits for time to pass: a `Gate` holds a call until the test opens it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hicache_storage.errors import StoreUnavailable
from hicache_storage.store import ObjectStore
from hicache_storage.testing.memory import fill_range
from hicache_storage.types import (
    ObjectInfo,
    ObjectWrite,
    Outcome,
    RangeRead,
    ReadableBuffer,
    WritableBuffer,
    WriteResult,
)

Op: TypeAlias = Literal["write", "read", "stat", "delete", "list", "quarantine"]
"""One object's operation. A batch arrives as its single requests: ``exists_many`` and ``touch_many`` as ``stat``."""

Kind: TypeAlias = Literal["raise", "delay", "lost_answer", "drop", "miss", "short", "long", "corrupt"]

_KINDS: dict[str, tuple[str, ...]] = {
    "write": ("raise", "delay", "lost_answer", "drop"),
    "read": ("raise", "delay", "miss", "short", "long", "corrupt"),
    "stat": ("raise", "delay", "miss", "short", "long"),
    "delete": ("raise", "delay", "lost_answer", "miss"),
    "list": ("raise", "delay", "miss"),
    "quarantine": ("raise", "delay", "lost_answer", "miss"),
}


class Gate:
    """Holds calls until it is opened; `entered` is set as soon as one has arrived."""

    def __init__(self, deadline_s: float = 60) -> None:
        self.entered = threading.Event()
        self._opened = threading.Event()
        self._deadline_s = deadline_s

    def open(self) -> None:
        """Let through whoever waits and whoever comes."""
        self._opened.set()

    def pass_through(self) -> None:
        """Return once the gate is open.

        Raises:
            TimeoutError: nobody opened it before the deadline, which only keeps a wrong test from hanging.
        """
        self.entered.set()
        if not self._opened.wait(self._deadline_s):
            raise TimeoutError(f"nobody opened the gate within {self._deadline_s} s")


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, in which call.

    Attributes:
        op: the operation that it concerns.
        kind: ``raise`` raises *error* and does nothing; ``delay`` waits for *gate* and goes on;
            ``lost_answer`` does it and then raises *error*; ``drop`` reports ``STORED`` and
            stores nothing; ``miss`` does nothing and answers that the object is not there;
            ``short`` and ``long`` show an object that lacks its last *nbytes* or has as many
            zeros behind it; ``corrupt`` flips the lowest bit of the first byte that is read.
        nth: only the nth call, from 1, of those with this *op* and *key*; None = every one.
        key: only calls for this key; None = any. For ``list`` it is the prefix.
        error: what is raised, as it is; None = a new `StoreUnavailable`.
        nbytes: by how much ``short`` and ``long`` differ from the truth.
        gate: what ``delay`` waits for.
    """

    op: Op
    kind: Kind
    nth: int | None = None
    key: str | None = None
    error: Exception | None = None
    nbytes: int = 1
    gate: Gate | None = None

    def __post_init__(self) -> None:
        if self.kind not in _KINDS[self.op]:
            raise ValueError(f"{self.op} has no fault {self.kind!r}; it has {', '.join(_KINDS[self.op])}")
        if self.nth is not None and self.nth < 1:
            raise ValueError(f"nth counts from 1, got {self.nth}")
        if (self.kind == "delay") != (self.gate is not None):
            raise ValueError("a delay needs a gate, and only a delay has one")


@dataclass(frozen=True, slots=True)
class Call:
    """One call that arrived. A batch is noted by its own name with key ``""``, followed by its requests."""

    op: str
    key: str


class FaultyStore(ObjectStore):
    """Answers like *inner*, except where the script says otherwise.

    Of several faults for one call, every delay applies, and then the first other one.

    Attributes:
        calls: what has arrived, in order; a test may clear it.
    """

    name = "faulty"

    def __init__(self, inner: ObjectStore, script: Sequence[Fault] = ()) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities
        self.calls: list[Call] = []
        self._lock = threading.Lock()
        self.rescript(script)

    def rescript(self, script: Sequence[Fault]) -> None:
        """From now on the faults are those of *script*, and its calls are counted from here."""
        with self._lock:
            self._script = list(script)
            self._counts = [0] * len(self._script)

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        fault = self._arrive("write", key)
        if _is(fault, "drop"):
            return WriteResult.STORED
        result = self.inner.write(key, parts)
        self._answer(fault, key)
        return result

    def read_into(
        self,
        key: str,
        offset: int,
        targets: Sequence[WritableBuffer],
        *,
        object_nbytes: int | None = None,
    ) -> bool:
        fault = self._arrive("read", key)
        if fault is None:
            return self.inner.read_into(key, offset, targets, object_nbytes=object_nbytes)
        body = None if fault.kind == "miss" else self._whole(key)
        if body is None:
            return False
        _distort(body, fault, offset)
        fill_range(body, offset, targets, object_nbytes, backend=self.name, key=key)
        return True

    def stat(self, key: str) -> ObjectInfo | None:
        fault = self._arrive("stat", key)
        info = None if _is(fault, "miss") else self.inner.stat(key)
        if info is None or fault is None:
            return info
        nbytes = info.nbytes + fault.nbytes if fault.kind == "long" else max(0, info.nbytes - fault.nbytes)
        return dataclasses.replace(info, nbytes=nbytes)

    def delete(self, key: str) -> bool:
        fault = self._arrive("delete", key)
        found = not _is(fault, "miss") and self.inner.delete(key)
        self._answer(fault, key)
        return found

    def quarantine(self, key: str) -> bool:
        fault = self._arrive("quarantine", key)
        found = not _is(fault, "miss") and self.inner.quarantine(key)
        self._answer(fault, key)
        return found

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        fault = self._arrive("list", prefix)
        return iter(()) if _is(fault, "miss") else self.inner.list_keys(prefix)

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        self.calls.append(Call("read_many", ""))
        return super().read_many(reads)

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        self.calls.append(Call("write_many", ""))
        return super().write_many(writes)

    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        self.calls.append(Call("exists_many", ""))
        return super().exists_many(keys)

    def delete_many(self, keys: Sequence[str]) -> list[Outcome]:
        self.calls.append(Call("delete_many", ""))
        return super().delete_many(keys)

    def touch_many(self, keys: Sequence[str]) -> list[Outcome]:
        self.calls.append(Call("touch_many", ""))
        return super().exists_many(keys)

    def register_memory(self, buffer: WritableBuffer) -> None:
        self.inner.register_memory(buffer)

    def unregister_memory(self, buffer: WritableBuffer) -> None:
        self.inner.unregister_memory(buffer)

    def close(self) -> None:
        self.inner.close()

    def _arrive(self, op: Op, key: str) -> Fault | None:
        """Note the call, wait for gates, raise what is to be raised; return what else is to go wrong."""
        self.calls.append(Call(op, key))
        with self._lock:
            firing = [fault for i, fault in enumerate(self._script) if self._fires(i, fault, op, key)]
        for fault in firing:
            if fault.gate is not None:
                fault.gate.pass_through()
        rest = [fault for fault in firing if fault.kind != "delay"]
        if rest and rest[0].kind == "raise":
            raise self._error(rest[0], key)
        return rest[0] if rest else None

    def _fires(self, i: int, fault: Fault, op: Op, key: str) -> bool:
        if fault.op != op or fault.key not in {None, key}:
            return False
        self._counts[i] += 1
        return fault.nth in {None, self._counts[i]}

    def _answer(self, fault: Fault | None, key: str) -> None:
        if fault is not None and fault.kind == "lost_answer":
            raise self._error(fault, key)

    def _error(self, fault: Fault, key: str) -> Exception:
        return fault.error or StoreUnavailable(f"scripted: {fault.kind}", backend=self.name, op=fault.op, key=key)

    def _whole(self, key: str) -> bytearray | None:
        info = self.inner.stat(key)
        if info is None:
            return None
        body = bytearray(info.nbytes)
        return body if self.inner.read_into(key, 0, [body], object_nbytes=info.nbytes) else None


def _is(fault: Fault | None, kind: Kind) -> bool:
    return fault is not None and fault.kind == kind


def _distort(body: bytearray, fault: Fault, offset: int) -> None:
    if fault.kind == "long":
        body.extend(bytes(fault.nbytes))
    elif fault.kind == "short":
        del body[max(0, len(body) - fault.nbytes) :]
    elif 0 <= offset < len(body):
        body[offset] ^= 1
