"""How many bytes may be under way: reads wait for their turn, writes are dropped."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from hicache_storage.deadline import remaining_s
from hicache_storage.errors import StoreError, StoreUnavailable, Unsupported
from hicache_storage.middleware.budget import Budget, leading
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
        listed = [reads[index] for index in range(len(reads))]
        sizes = [read.nbytes for read in listed]
        outcomes: list[Outcome] = []
        start = 0
        while start < len(listed):
            stop = start + max(1, leading(sizes[start:], self._nbytes))
            part = self._read_part(listed[start:stop], sum(sizes[start:stop]))
            outcomes += part
            start = stop
            if (error := _no_answer(part)) is not None:
                return outcomes + [failed(error)] * (len(listed) - start)
        return outcomes

    def _read_part(self, reads: Sequence[RangeRead], nbytes: int) -> list[Outcome]:
        try:
            with self._taken(nbytes, ""):
                return self.inner.read_many(reads)
        except StoreError as error:
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
    """Drops writes beyond *nbytes* under way: a slow store must not pile up host memory.

    A batch that does not fit at once is written in parts, one after the other, in order; when not even its next
    object fits beside the writes of others, that one and all behind it are dropped. A dropped write is a
    failure (`StoreUnavailable`), not an error of the server: the page is written when it is next backed up.
    An object larger than the whole budget is never written (`Unsupported`).

    Attributes:
        dropped: how many objects were dropped so far.
    """

    def __init__(self, inner: ObjectStore, nbytes: int) -> None:
        super().__init__(inner)
        limit = inner.capabilities.max_object_nbytes
        self.capabilities = replace(
            inner.capabilities, max_object_nbytes=nbytes if limit is None else min(limit, nbytes)
        )
        self.budget = Budget(nbytes)
        self.dropped = 0
        self._nbytes = nbytes
        self._lock = threading.Lock()

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        nbytes = sum(map(nbytes_of, parts))
        if nbytes > self._nbytes:
            raise self._refusal(nbytes, key)
        count, taken = self.budget.take_leading([nbytes])
        if not count:
            raise self._drop(1, nbytes, key)
        try:
            return self.inner.write(key, parts)
        finally:
            self.budget.give_back(taken)

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        listed = [writes[index] for index in range(len(writes))]
        sizes = [write.nbytes for write in listed]
        outcomes: list[Outcome] = []
        start = 0
        while start < len(listed):
            if sizes[start] > self._nbytes:
                outcomes.append(failed(self._refusal(sizes[start], listed[start].key)))
                start += 1
                continue
            count, taken = self.budget.take_leading(sizes[start:])
            part = self._write_part(listed[start : start + count], taken)
            outcomes += part
            error = _no_answer(part) if count else self._drop(len(sizes) - start, sum(sizes[start:]), "")
            start += count
            if error is not None:
                return outcomes + [failed(error)] * (len(listed) - start)
        return outcomes

    def _write_part(self, writes: Sequence[ObjectWrite], taken: int) -> list[Outcome]:
        try:
            return self.inner.write_many(writes) if writes else []
        except StoreError as error:
            return [failed(error)] * len(writes)
        finally:
            self.budget.give_back(taken)

    def _refusal(self, nbytes: int, key: str) -> Unsupported:
        reason = f"object of {nbytes} bytes, the write budget is {self._nbytes}"
        return Unsupported(reason, backend=self.name, op="write", key=key)

    def _drop(self, objects: int, nbytes: int, key: str) -> StoreUnavailable:
        with self._lock:
            self.dropped += objects
        reason = f"write of {nbytes} bytes dropped: {self.budget.in_flight_nbytes} of {self._nbytes} are under way"
        return StoreUnavailable(reason, backend=self.name, op="write", key=key)


def _no_answer(part: Sequence[Outcome]) -> StoreError | None:
    """Return why the rest of a batch is not tried, None if it is: each part would wait for a dead store again."""
    errors = [outcome.error for outcome in part]
    return errors[-1] if errors and all(isinstance(error, StoreUnavailable) for error in errors) else None
