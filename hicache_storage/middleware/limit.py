"""How many bytes may be under way: reads wait for their turn, writes are dropped."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hicache_storage.deadline import remaining_s
from hicache_storage.errors import StoreUnavailable
from hicache_storage.middleware.layer import Layer
from hicache_storage.store import ObjectStore
from hicache_storage.types import (
    ObjectWrite,
    Outcome,
    RangeRead,
    ReadableBuffer,
    WritableBuffer,
    WriteResult,
    failed,
    nbytes_of,
)

_WAIT_AT_MOST_S = 60.0


class Budget:
    """A number of bytes that may be taken at once; whoever wants more than all of it takes all of it."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._free = nbytes
        self._changed = threading.Condition()

    @property
    def in_flight_nbytes(self) -> int:
        with self._changed:
            return self._nbytes - self._free

    def take(self, nbytes: int, *, wait_s: float) -> int | None:
        """Take *nbytes* and return what was taken, to be given back; None if there was no room in time."""
        wanted = min(nbytes, self._nbytes)
        with self._changed:
            if not self._changed.wait_for(lambda: self._free >= wanted, timeout=wait_s):
                return None
            self._free -= wanted
            return wanted

    def give_back(self, nbytes: int) -> None:
        """Return what `take` gave."""
        with self._changed:
            self._free += nbytes
            self._changed.notify_all()


class ReadBudgetLayer(Layer):
    """Lets at most *nbytes* of reads be under way; the others wait, a large batch goes in parts."""

    def __init__(self, inner: ObjectStore, nbytes: int) -> None:
        super().__init__(inner)
        self.budget = Budget(nbytes)
        self._nbytes = nbytes

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        with self._taken(sum(map(nbytes_of, targets)), key):
            return self.inner.read_into(key, offset, targets, object_nbytes=object_nbytes)

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        part: list[RangeRead] = []
        part_nbytes = 0
        for index in range(len(reads)):
            read = reads[index]
            if part and part_nbytes + read.nbytes > self._nbytes:
                outcomes += self._read_part(part, part_nbytes)
                part, part_nbytes = [], 0
            part.append(read)
            part_nbytes += read.nbytes
        return outcomes + (self._read_part(part, part_nbytes) if part else [])

    def _read_part(self, reads: Sequence[RangeRead], nbytes: int) -> list[Outcome]:
        try:
            with self._taken(nbytes, ""):
                return self.inner.read_many(reads)
        except StoreUnavailable as error:
            return [failed(error)] * len(reads)

    @contextmanager
    def _taken(self, nbytes: int, key: str) -> Iterator[None]:
        taken = self.budget.take(nbytes, wait_s=remaining_s(_WAIT_AT_MOST_S))
        if taken is None:
            reason = f"no room for {nbytes} bytes in a read budget of {self._nbytes}"
            raise StoreUnavailable(reason, backend=self.name, op="read", key=key)
        try:
            yield
        finally:
            self.budget.give_back(taken)


class WriteBudgetLayer(Layer):
    """Drops writes while more than *nbytes* of them are under way: a slow store must not pile up host memory.

    A dropped write is a failure (`StoreUnavailable`), not an error of the server: the page is written when it
    is next backed up.

    Attributes:
        dropped: how many objects were dropped so far.
    """

    def __init__(self, inner: ObjectStore, nbytes: int) -> None:
        super().__init__(inner)
        self.budget = Budget(nbytes)
        self.dropped = 0
        self._nbytes = nbytes
        self._lock = threading.Lock()

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        taken = self._take(sum(map(nbytes_of, parts)), 1, key)
        try:
            return self.inner.write(key, parts)
        finally:
            self.budget.give_back(taken)

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        listed = [writes[index] for index in range(len(writes))]
        try:
            taken = self._take(sum(write.nbytes for write in listed), len(listed), "")
        except StoreUnavailable as error:
            return [failed(error)] * len(listed)
        try:
            return self.inner.write_many(listed)
        finally:
            self.budget.give_back(taken)

    def _take(self, nbytes: int, objects: int, key: str) -> int:
        taken = self.budget.take(nbytes, wait_s=0)
        if taken is None:
            with self._lock:
                self.dropped += objects
            reason = f"write of {nbytes} bytes dropped: {self.budget.in_flight_nbytes} of {self._nbytes} are under way"
            raise StoreUnavailable(reason, backend=self.name, op="write", key=key)
        return taken
