"""A total deadline for every operation, retries included, also on a store that has none of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from hicache_storage.deadline import remaining_s, within
from hicache_storage.errors import StoreUnavailable
from hicache_storage.middleware.layer import Layer
from hicache_storage.store import ObjectStore
from hicache_storage.types import (
    ObjectInfo,
    ObjectWrite,
    Outcome,
    RangeRead,
    ReadableBuffer,
    WritableBuffer,
    WriteResult,
    failed,
    nbytes_of,
)

T = TypeVar("T")
R = TypeVar("R", RangeRead, ObjectWrite, str)

_LISTED_AT_ONCE = 1024

_log = logging.getLogger(__name__)


class DeadlineLayer(Layer):
    """Gives every operation *deadline_s* in all; a batch counts as one operation, a listing has no deadline."""

    def __init__(self, inner: ObjectStore, deadline_s: float) -> None:
        super().__init__(inner)
        self._deadline_s = deadline_s

    def single(self, op: str, key: str, call: Callable[[], T]) -> T:
        with within(self._deadline_s):
            return call()

    def batch(self, op: str, requests: Sequence[R], call: Callable[[Sequence[R]], list[Outcome]]) -> list[Outcome]:
        with within(self._deadline_s):
            return call(requests)


class GuardLayer(Layer):
    """Makes a store keep deadlines that cannot keep them itself, such as a file store on a hung mount.

    Each operation runs on a thread of its own, and the caller stops waiting when the deadline is over. What
    still runs then must never touch the caller's memory, so reads go through memory of our own and writes
    from a copy: one copy each, the price of the guard. A listing has the deadline for every 1,024 objects.
    At most *stuck_limit* operations may be left behind; more fail at once until some of them end.

    Raises:
        StoreUnavailable: from every operation whose deadline is over.
    """

    def __init__(self, inner: ObjectStore, deadline_s: float, *, stuck_limit: int = 16) -> None:
        super().__init__(inner)
        self.capabilities = replace(inner.capabilities, keeps_deadline=True, memory_registration=False)
        self._deadline_s = deadline_s
        self._stuck_limit = stuck_limit
        self._stuck = 0
        self._lock = threading.Lock()

    def single(self, op: str, key: str, call: Callable[[], T]) -> T:
        with self._lock:
            if self._stuck >= self._stuck_limit:
                reason = f"{self._stuck} operations are stuck in the store"
                raise StoreUnavailable(reason, backend=self.name, op=op, key=key)
        limit_s = remaining_s(self._deadline_s)
        if not limit_s:
            raise StoreUnavailable("no time is left to begin", backend=self.name, op=op, key=key)
        return self._guarded(op, key, call, limit_s)

    def batch(self, op: str, requests: Sequence[R], call: Callable[[Sequence[R]], list[Outcome]]) -> list[Outcome]:
        try:
            return self.single(op, "", lambda: call(requests))
        except StoreUnavailable as error:
            return [failed(error)] * len(requests)

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        copied = [bytes(part) for part in parts]
        return self.single("write", key, lambda: self.inner.write(key, copied))

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        copied = [ObjectWrite(write.key, [bytes(part) for part in write.parts]) for write in writes]
        return self.batch("write", copied, self.inner.write_many)

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        owned = [bytearray(nbytes_of(target)) for target in targets]
        found = self.single("read", key, lambda: self.inner.read_into(key, offset, owned, object_nbytes=object_nbytes))
        if found:
            _hand_over(owned, targets)
        return found

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        asked = [reads[index] for index in range(len(reads))]
        owned = [[bytearray(nbytes_of(target)) for target in read.targets] for read in asked]
        mine = [
            RangeRead(read.key, read.offset, memory, read.object_nbytes)
            for read, memory in zip(asked, owned, strict=True)
        ]
        outcomes = self.batch("read", mine, self.inner.read_many)
        for read, memory, outcome in zip(asked, owned, outcomes, strict=True):
            if outcome:
                _hand_over(memory, read.targets)
        return outcomes

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        listing = self.single("list", prefix, lambda: self.inner.list_keys(prefix))
        while some := self.single("list", prefix, lambda: list(islice(listing, _LISTED_AT_ONCE))):
            yield from some

    def register_memory(self, buffer: WritableBuffer) -> None:
        """Ignored: the inner store only ever sees memory of this layer."""

    def unregister_memory(self, buffer: WritableBuffer) -> None:
        """Ignored, as `register_memory`."""

    def close(self) -> None:
        """Close the inner store; one in which operations are stuck has the deadline for that, and is then left to itself."""
        with self._lock:
            is_stuck = self._stuck > 0
        if not is_stuck:
            self.inner.close()
            return
        try:
            self._guarded("close", "", self.inner.close, self._deadline_s)
        except StoreUnavailable as error:
            _log.warning("store.left_open backend=%s %s", self.name, error)

    def _guarded(self, op: str, key: str, call: Callable[[], T], limit_s: float) -> T:
        result: Future[T] = Future()
        thread = threading.Thread(
            target=self._run, args=(result, copy_context(), call), name=f"hicache-guard-{op}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreUnavailable(f"no thread for it: {error}", backend=self.name, op=op, key=key) from error
        try:
            return result.result(limit_s)
        except TimeoutError:
            if result.done():
                return result.result()
            with self._lock:
                self._stuck += 1
            result.add_done_callback(self._came_back)
            reason = f"no answer within {limit_s:.2f} s"
            raise StoreUnavailable(reason, backend=self.name, op=op, key=key) from None

    @staticmethod
    def _run(result: Future[T], context: Context, call: Callable[[], T]) -> None:
        try:
            result.set_result(context.run(call))
        except BaseException as error:  # noqa: BLE001 - handed to the waiting caller, which raises it
            result.set_exception(error)

    def _came_back(self, _: object) -> None:
        with self._lock:
            self._stuck -= 1


def _hand_over(owned: Sequence[bytearray], targets: Sequence[WritableBuffer]) -> None:
    for memory, target in zip(owned, targets, strict=True):
        memoryview(target).cast("B")[:] = memory
