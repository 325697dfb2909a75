"""A store that goes wrong now and then, by configuration: what is built on it must give right answers all the same.

Tests that need one certain fault in one certain call use `hicache_storage.testing.faults` instead.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from hicache_storage.deadline import remaining_s
from hicache_storage.errors import StoreUnavailable
from hicache_storage.middleware.fault_plan import FaultOptions, FaultPlan, Op, Strike
from hicache_storage.middleware.layer import Layer, built_once
from hicache_storage.middleware.struck_store import StruckStore
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
)

R = TypeVar("R", RangeRead, ObjectWrite, str)

_log = logging.getLogger(__name__)


def with_faults(store: ObjectStore, options: FaultOptions, rank: str) -> ObjectStore:
    """Return *store* with faults, or as it is where *options* are for other ranks; the log says which in any case."""
    if not options.concerns(rank):
        _log.warning("faults.off backend=%s rank=%s %s", store.name, rank or "none", options)
        return store
    return FaultLayer(store, options, rank)


class FaultLayer(Layer):
    """Answers like the inner store, except for the share of the requests that *options* ask to go wrong.

    A request is held up first, until the caller's deadline at most, and then one other thing may happen to it. In a
    batch each request counts by itself; those that nothing happens to reach the inner store in one batch. A store
    that hangs or is slow does not bound itself: under such options it no longer says that it keeps deadlines.

    Args:
        rank: the name of this process among its engine's ranks, mixed with the seed.

    Attributes:
        struck: how often each thing happened, ``wait`` included.
    """

    def __init__(self, inner: ObjectStore, options: FaultOptions, rank: str) -> None:
        super().__init__(inner)
        if options.delay_rate or options.hang_rate:
            self.capabilities = replace(inner.capabilities, keeps_deadline=False)
        self.struck: Counter[str] = Counter()
        self._plan = FaultPlan(options, rank)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        _log.warning("faults.on backend=%s rank=%s %s", inner.name, rank or "none", options)

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        return self._arrive("write", key).write(key, parts)

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        return self._arrive("read", key).read_into(key, offset, targets, object_nbytes=object_nbytes)

    def stat(self, key: str) -> ObjectInfo | None:
        return self._arrive("stat", key).stat(key)

    def delete(self, key: str) -> bool:
        return self._arrive("delete", key).delete(key)

    def quarantine(self, key: str) -> bool:
        return self._arrive("quarantine", key).quarantine(key)

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._arrive("list", prefix).list_keys(prefix)

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        return self._many("read", reads, lambda store, some: store.read_many(some))

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        return self._many("write", writes, lambda store, some: store.write_many(some))

    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self._many("stat", keys, lambda store, some: store.exists_many(some))

    def delete_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self._many("delete", keys, lambda store, some: store.delete_many(some))

    def touch_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self._many("stat", keys, lambda store, some: store.touch_many(some))

    def close(self) -> None:
        self._closed.set()
        self.inner.close()

    def _arrive(self, op: Op, key: str) -> ObjectStore:
        """Return the store that performs this one request, after what holds it up."""
        strike = self._draw(op, key)
        error = self._held_up(strike.wait_s, op, key)
        if error is not None:
            raise error
        return self.inner if strike.kind is None else StruckStore(self.inner, strike)

    def _many(
        self, op: Op, requests: Sequence[R], perform: Callable[[ObjectStore, Sequence[R]], list[Outcome]]
    ) -> list[Outcome]:
        listed = built_once(op, requests)
        strikes = [self._draw(op, _key_of(listed[index])) for index in range(len(listed))]
        error = self._held_up(max((strike.wait_s for strike in strikes), default=0.0), op, "")
        if error is not None:
            return [failed(error)] * len(listed)
        calm = [index for index, strike in enumerate(strikes) if strike.kind is None]
        outcomes = dict(zip(calm, perform(self.inner, [listed[index] for index in calm]) if calm else [], strict=True))
        for index, strike in enumerate(strikes):
            if strike.kind is not None:
                [outcomes[index]] = perform(StruckStore(self.inner, strike), [listed[index]])
        return [outcomes[index] for index in range(len(strikes))]

    def _draw(self, op: Op, key: str) -> Strike:
        strike = self._plan.draw(op, key)
        happened = [*([strike.kind] if strike.kind else []), *(["wait"] if strike.wait_s else [])]
        if happened:
            with self._lock:
                self.struck.update(happened)
            _log.debug("faults.strike op=%s key=%s what=%s", op, key, "+".join(happened))
        return strike

    def _held_up(self, wait_s: float, op: Op, key: str) -> StoreUnavailable | None:
        """Wait; return why nothing comes of the request then, None if it goes on."""
        limit_s = remaining_s(wait_s)
        if self._closed.wait(limit_s):
            return StoreUnavailable("the store is closed", backend=self.name, op=op, key=key)
        if limit_s < wait_s:
            return StoreUnavailable("injected: no answer within the deadline", backend=self.name, op=op, key=key)
        return None


def _key_of(request: RangeRead | ObjectWrite | str) -> str:
    return request if isinstance(request, str) else request.key
