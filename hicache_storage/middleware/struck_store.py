"""A store whose every operation goes wrong in one certain way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hicache_storage.errors import CorruptObject, RangeError, StoreUnavailable
from hicache_storage.middleware.fault_plan import Op, Strike
from hicache_storage.store import ObjectStore
from hicache_storage.types import ObjectInfo, ReadableBuffer, WritableBuffer, WriteResult, nbytes_of


class StruckStore(ObjectStore):
    """Does each operation of *inner* with the fault of *strike*.

    Batches are derived from single operations, so nobody hashes what is read before its bit is flipped.
    """

    def __init__(self, inner: ObjectStore, strike: Strike) -> None:
        self.name = inner.name
        self.capabilities = inner.capabilities
        self._inner = inner
        self._strike = strike

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        self._before("write", key)
        result = WriteResult.STORED if self._strike.kind == "lost_write" else self._inner.write(key, parts)
        self._behind("write", key)
        return result

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        self._before("read", key)
        found = self._strike.kind != "miss" and self._inner.read_into(key, offset, targets, object_nbytes=object_nbytes)
        if found and self._strike.kind == "short":
            self._check_short(key, offset + sum(map(nbytes_of, targets)), object_nbytes)
        elif found and self._strike.kind == "corrupt":
            _flip(targets, self._strike.draw)
        return found

    def stat(self, key: str) -> ObjectInfo | None:
        self._before("stat", key)
        return None if self._strike.kind == "miss" else self._inner.stat(key)

    def delete(self, key: str) -> bool:
        return self._taken_out("delete", key, self._inner.delete)

    def quarantine(self, key: str) -> bool:
        return self._taken_out("quarantine", key, self._inner.quarantine)

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._before("list", prefix)
        return iter(())

    def _taken_out(self, op: Op, key: str, take_out: Callable[[str], bool]) -> bool:
        self._before(op, key)
        found = self._strike.kind != "miss" and take_out(key)
        self._behind(op, key)
        return found

    def _check_short(self, key: str, stop: int, object_nbytes: int | None) -> None:
        """Raise what a store says of an object without its last byte, if the range that ends at *stop* shows it."""
        if object_nbytes is not None:
            reason = f"object of {object_nbytes - 1} bytes, expected {object_nbytes}"
            raise CorruptObject(reason, backend=self.name, op="read", key=key)
        info = self._inner.stat(key)
        if info is not None and stop >= info.nbytes:
            reason = f"range ends at {stop}, object of {info.nbytes - 1} bytes"
            raise RangeError(reason, backend=self.name, op="read", key=key)

    def _before(self, op: Op, key: str) -> None:
        if self._strike.kind == "error":
            raise StoreUnavailable("injected: no answer", backend=self.name, op=op, key=key)

    def _behind(self, op: Op, key: str) -> None:
        if self._strike.kind == "lost_answer":
            raise StoreUnavailable("injected: the answer is lost", backend=self.name, op=op, key=key)


def _flip(targets: Sequence[WritableBuffer], draw: int) -> None:
    """Flip one bit of what *targets* hold together, if they hold any."""
    total = sum(map(nbytes_of, targets))
    position = draw % (8 * total) if total else 0
    for target in targets:
        if position < 8 * nbytes_of(target):
            memoryview(target).cast("B")[position // 8] ^= 1 << position % 8
            return
        position -= 8 * nbytes_of(target)
