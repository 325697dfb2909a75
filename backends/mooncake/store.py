"""The Mooncake backend: objects in the memory of store nodes, moved by the SDK's transfer engine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, TypeVar

from hicache_storage.backends.mooncake import listing
from hicache_storage.backends.mooncake.buffers import address_of
from hicache_storage.backends.mooncake.engine import engine_for
from hicache_storage.backends.mooncake.errors import BACKEND, NOT_THERE, OK, store_error, unavailable
from hicache_storage.backends.mooncake.names import Names
from hicache_storage.backends.mooncake.options import MooncakeOptions
from hicache_storage.backends.mooncake.pieces import TAIL
from hicache_storage.backends.mooncake.reading import Reader
from hicache_storage.backends.mooncake.sdk import Client, placements
from hicache_storage.backends.mooncake.workers import Call
from hicache_storage.backends.mooncake.writing import Writer
from hicache_storage.deadline import remaining_s
from hicache_storage.errors import StoreError, Unsupported
from hicache_storage.store import ObjectStore, check_key
from hicache_storage.types import (
    HIT,
    MISS,
    Capabilities,
    ObjectInfo,
    ObjectWrite,
    Outcome,
    RangeRead,
    ReadableBuffer,
    Status,
    WritableBuffer,
    WriteResult,
    failed,
    nbytes_of,
)

T = TypeVar("T")

_MOST_IN_A_CALL = 64
_MOST_KEYS_IN_A_CALL = 2000


class MooncakeStore(ObjectStore):
    """Objects in a Mooncake cluster: a master that knows where they are, and nodes that hold them in memory.

    They outlive the worker that wrote them, but not the nodes: start these with
    ``python -m hicache_storage.backends.mooncake.node``. The connection is made when it is first needed,
    is shared by all stores with equal settings, and lasts as long as the process.

    What goes directly between the node and the caller's memory: writes from registered memory, and
    with ``direct_reads`` reads into it. Everything else is copied through registered memory of the
    store's own. A call that the SDK does not end in time is left behind with all that it uses.
    """

    name = BACKEND
    options_type: ClassVar[type] = MooncakeOptions

    def __init__(self, options: MooncakeOptions) -> None:
        self.capabilities = Capabilities(
            durable=False,
            memory_registration=True,
            keeps_deadline=not options.direct_reads,  # A direct read ends when the SDK lets go of the memory.
        )
        self._options = options
        self._names = Names(options.key_prefix)
        self._engine = engine_for(options)
        self._reader = Reader(self._engine, direct=options.direct_reads)
        self._writer = Writer(self._engine, self._names, options)
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._registered: dict[int, WritableBuffer] = {}

    # -- reading and writing ---------------------------------------------------------------

    def read_into(
        self,
        key: str,
        offset: int,
        targets: Sequence[WritableBuffer],
        *,
        object_nbytes: int | None = None,
    ) -> bool:
        [outcome] = self.read_many([RangeRead(key, offset, targets, object_nbytes)])
        return _hit(outcome)

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        def work(call: Call) -> None:
            requests = {at: reads[index] for at, index in enumerate(call.run)}
            names = self._named(call, {at: read.key for at, read in requests.items()}, "read")
            self._reader.read(call, {at: requests[at] for at in names}, names)

        return self._in_calls("read", len(reads), _MOST_IN_A_CALL, work, lambda index: reads[index].key)

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        [outcome] = self.write_many([ObjectWrite(key, parts)])
        if outcome.error is not None:
            raise outcome.error
        return WriteResult.STORED if outcome.status is Status.STORED else WriteResult.ALREADY_THERE

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        def work(call: Call) -> None:
            requests = {at: writes[index] for at, index in enumerate(call.run)}
            names = self._named(call, {at: write.key for at, write in requests.items()}, "write")
            self._writer.write(call, {at: requests[at] for at in names}, names)

        return self._in_calls("write", len(writes), _MOST_IN_A_CALL, work, lambda index: writes[index].key)

    def register_memory(self, buffer: WritableBuffer) -> None:
        self._check("register")
        address = address_of(buffer)
        with self._lock:
            if address is not None and address not in self._registered:
                self._registered[address] = buffer
                self._engine.register(address, nbytes_of(buffer))

    def unregister_memory(self, buffer: WritableBuffer) -> None:
        address = address_of(buffer)
        with self._lock:
            if address is not None and self._registered.pop(address, None) is not None and self._pid == os.getpid():
                self._engine.unregister(address, nbytes_of(buffer))

    # -- the rest --------------------------------------------------------------------------

    def stat(self, key: str) -> ObjectInfo | None:
        sizes: list[int] = []

        def look(client: Client, names: list[str]) -> list[Outcome]:
            copies = placements(client, names).get(names[0])
            if copies is None:
                return _codes_as_outcomes(client.batch_is_exist(names), [key], "stat")
            sizes.append(next(iter(copies)).nbytes - len(TAIL))
            return [HIT]

        [outcome] = self._on_keys("stat", [key], look)
        return ObjectInfo(key, sizes[-1]) if _hit(outcome) and sizes else None

    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self._on_keys(
            "exists", keys, lambda client, names: _codes_as_outcomes(client.batch_is_exist(names), names, "exists")
        )

    def delete(self, key: str) -> bool:
        [outcome] = self.delete_many([key])
        return _hit(outcome)

    def delete_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self._on_keys("delete", keys, _remove)

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._check("list")
        host = self._options.master.rpartition(":")[0].strip("[]")
        return listing.objects(host, self._options.master_metrics_port, self._names, prefix, self._options.deadline_s)

    def close(self) -> None:
        self._closed = True
        if self._pid == os.getpid():
            with self._lock:
                for address, buffer in self._registered.items():
                    self._engine.unregister(address, nbytes_of(buffer))
                self._registered.clear()

    # -- calls -----------------------------------------------------------------------------

    def _on_keys(
        self, op: str, keys: Sequence[str], ask: Callable[[Client, list[str]], list[Outcome]]
    ) -> list[Outcome]:
        """Perform *ask* for the names of those keys that are keys at all."""

        def work(call: Call) -> None:
            names = self._named(call, {at: keys[index] for at, index in enumerate(call.run)}, op)
            if not names:
                return
            client = self._engine.client(op, call.ends_at)
            for at, outcome in zip(names, ask(client, list(names.values())), strict=True):
                call.outcomes[at] = outcome

        return self._in_calls(op, len(keys), _MOST_KEYS_IN_A_CALL, work, lambda index: keys[index])

    def _in_calls(
        self, op: str, count: int, most: int, work: Callable[[Call], None], key_of: Callable[[int], str]
    ) -> list[Outcome]:
        """Perform *count* requests in parallel calls; a call that takes too long fails what it has not settled."""
        try:
            self._check(op)
        except StoreError as error:
            return [failed(_about(error, key_of(index))) for index in range(count)]
        ends_at = time.monotonic() + remaining_s(self._options.deadline_s)

        def guarded(call: Call) -> None:
            try:
                work(call)
            except StoreError as error:
                for at, outcome in enumerate(call.outcomes):
                    if outcome is None:
                        call.outcomes[at] = failed(_about(error, key_of(call.run[at])))

        size = min(most, -(-count // self._options.io_threads)) or 1
        calls = [Call(guarded, range(start, min(start + size, count)), ends_at) for start in range(0, count, size)]
        self._engine.workers.perform(calls)
        late = f"no answer within {self._options.deadline_s:g} s"
        return [
            failed(unavailable(late, op=op, key=key_of(index))) if outcome is None else outcome
            for call in calls
            for index, outcome in zip(call.run, call.outcomes, strict=True)
        ]

    def _check(self, op: str) -> None:
        if self._closed:
            raise unavailable("the store is closed", op=op)
        if self._pid != os.getpid():
            reason = "a Mooncake store does not survive a fork; open it in a process started with spawn or exec"
            raise Unsupported(reason, backend=BACKEND, op=op)

    def _named(self, call: Call, keys: dict[int, str], op: str) -> dict[int, str]:
        """Return the names of those that are keys; the others' outcomes are set."""
        names = {}
        for at, key in keys.items():
            try:
                names[at] = self._names.name(check_key(key, self.capabilities, backend=BACKEND, op=op))
            except StoreError as error:
                call.outcomes[at] = failed(error)
        return names


def _remove(client: Client, names: list[str]) -> list[Outcome]:
    """Remove objects, leased or not: readers notice that what they read is gone."""
    return _codes_as_outcomes([1 if code == OK else code for code in client.batch_remove(names, True)], names, "delete")  # noqa: FBT003 - the SDK's


def _codes_as_outcomes(codes: Sequence[int], keys: Sequence[str], op: str) -> list[Outcome]:
    """Return HIT for 1, MISS for 0 and what else means absent, or a failure."""
    return [
        HIT if code > 0 else MISS if code == 0 or code in NOT_THERE else failed(store_error(code, op=op, key=key))
        for code, key in zip(codes, keys, strict=True)
    ]


def _hit(outcome: Outcome) -> bool:
    if outcome.error is not None:
        raise outcome.error
    return outcome.status is Status.HIT


def _about(error: StoreError, key: str) -> StoreError:
    """Return *error*, which concerns a whole call, as the error of one request of it."""
    one = type(error)(str(error.args[0]), backend=error.backend, op=error.op, key=error.key or key)
    one.__cause__ = error.__cause__
    return one
