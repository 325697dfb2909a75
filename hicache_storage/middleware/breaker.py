"""Not asking a store that does not answer, and finding out by itself when it does again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from hicache_storage.errors import StoreError, StoreUnavailable
from hicache_storage.middleware.layer import Layer
from hicache_storage.store import ObjectStore
from hicache_storage.types import ObjectWrite, Outcome, RangeRead, failed

T = TypeVar("T")
R = TypeVar("R", RangeRead, ObjectWrite, str)

_log = logging.getLogger(__name__)


class BreakerLayer(Layer):
    """Opens after *failures* calls in a row that could not reach the store; then fails calls at once.

    After *open_s* it half-opens: one call is let through to probe. If that reaches the store the breaker
    closes, otherwise it stays open twice as long as before, up to *max_open_s*. A call counts as
    unreachable if it raised `StoreUnavailable`, a batch if every one of its requests did: one slow node of a
    cluster does not shut out the others.

    Args:
        clock: monotonic seconds; replaced in tests.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        failures: int,
        open_s: float = 1.0,
        max_open_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner)
        self._failures = failures
        self._first_open_s = open_s
        self._max_open_s = max_open_s
        self._clock = clock
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._open_s = open_s
        self._closed_again_at: float | None = None
        self._probing = False

    @property
    def state(self) -> str:
        """``closed``, ``open`` or ``half-open``."""
        with self._lock:
            if self._closed_again_at is None:
                return "closed"
            return "half-open" if self._probing or self._clock() >= self._closed_again_at else "open"

    def single(self, op: str, key: str, call: Callable[[], T]) -> T:
        self._enter(op, key)
        reached = False
        try:
            result = call()
            reached = True
            return result
        except StoreError as error:
            reached = not isinstance(error, StoreUnavailable)
            raise
        finally:
            self._leave(reached=reached)

    def batch(self, op: str, requests: Sequence[R], call: Callable[[Sequence[R]], list[Outcome]]) -> list[Outcome]:
        try:
            self._enter(op, "")
        except StoreUnavailable as error:
            return [failed(error)] * len(requests)
        reached = False
        try:
            outcomes = call(requests)
            reached = not outcomes or any(not isinstance(outcome.error, StoreUnavailable) for outcome in outcomes)
            return outcomes
        finally:
            self._leave(reached=reached)

    def _enter(self, op: str, key: str) -> None:
        with self._lock:
            if self._closed_again_at is None:
                return
            if not self._probing and self._clock() >= self._closed_again_at:
                self._probing = True
                return
        raise StoreUnavailable("circuit breaker is open: the store did not answer", backend=self.name, op=op, key=key)

    def _leave(self, *, reached: bool) -> None:
        with self._lock:
            was_open = self._closed_again_at is not None
            self._probing = False
            if reached:
                self._in_a_row = 0
                self._open_s = self._first_open_s
                self._closed_again_at = None
                if was_open:
                    _log.info("breaker.closed backend=%s", self.name)
                return
            self._in_a_row += 1
            if was_open:
                self._open_s = min(self._max_open_s, self._open_s * 2)
            if was_open or self._in_a_row >= self._failures:
                self._closed_again_at = self._clock() + self._open_s
                _log.warning("breaker.open backend=%s for_s=%.1f", self.name, self._open_s)
