"""Not asking a store that does not answer, and finding out by itself when it does again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from hicache_storage.errors import StoreError, StoreUnavailable, Unsupported
from hicache_storage.middleware.layer import Layer
from hicache_storage.store import ObjectStore
from hicache_storage.types import ObjectWrite, Outcome, RangeRead, failed

T = TypeVar("T")
R = TypeVar("R", RangeRead, ObjectWrite, str)

_log = logging.getLogger(__name__)


class BreakerLayer(Layer):
    """Opens after *failures* calls in a row that could not reach the store; then fails calls at once.

    After *open_s* it half-opens: one call is let through to probe. If that reaches the store the breaker
    closes, otherwise it stays open twice as long as before, up to *max_open_s*. While it is open only the
    probe moves it: calls that began before it last opened or closed change nothing any more.

    A call counts as unreachable if it raised `StoreUnavailable`, a batch if no request of it reached the store:
    one slow node of a cluster does not shut out the others. What may have been said without asking the
    store (`Unsupported`, an empty batch, a bug's exception) counts neither way.

    Args:
        max_open_s: at least *open_s* is taken.
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
        self._max_open_s = max(open_s, max_open_s)
        self._clock = clock
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._open_s = open_s
        self._closed_again_at: float | None = None
        self._probing = False
        self._period = 0

    @property
    def state(self) -> str:
        """``closed``, ``open`` or ``half-open``."""
        with self._lock:
            if self._closed_again_at is None:
                return "closed"
            return "half-open" if self._probing or self._clock() >= self._closed_again_at else "open"

    def single(self, op: str, key: str, call: Callable[[], T]) -> T:
        period = self._enter(op, key)
        reached = None
        try:
            result = call()
            reached = True
            return result
        except StoreError as error:
            reached = _reached(error)
            raise
        finally:
            self._leave(period, reached=reached)

    def batch(self, op: str, requests: Sequence[R], call: Callable[[Sequence[R]], list[Outcome]]) -> list[Outcome]:
        try:
            period = self._enter(op, "")
        except StoreUnavailable as error:
            return [failed(error)] * len(requests)
        reached = None
        try:
            outcomes = call(requests)
            reached = _any_reached(outcomes)
            return outcomes
        except StoreError as error:
            reached = _reached(error)
            raise
        finally:
            self._leave(period, reached=reached)

    def _enter(self, op: str, key: str) -> int:
        """Return the period in which the call begins: in a closed one any call does, in an open one only the probe."""
        with self._lock:
            if self._closed_again_at is None:
                return self._period
            if not self._probing and self._clock() >= self._closed_again_at:
                self._probing = True
                return self._period
        raise StoreUnavailable("circuit breaker is open: the store did not answer", backend=self.name, op=op, key=key)

    def _leave(self, period: int, *, reached: bool | None) -> None:
        with self._lock:
            opened_s = self._moved(period, reached=reached)
        # Not under the lock: whoever takes the line may ask the store something, or take long.
        if opened_s == 0:
            _log.info("breaker.closed backend=%s", self.name)
        elif opened_s is not None:
            _log.warning("breaker.open backend=%s for_s=%.1f", self.name, opened_s)

    def _moved(self, period: int, *, reached: bool | None) -> float | None:
        """Count a call that has ended; return for how long the breaker opens, 0 if it closes, None if it stays as it is."""
        if period != self._period:
            return None
        was_open, self._probing = self._closed_again_at is not None, False
        if reached is None:
            return None
        if reached:
            self._in_a_row, self._open_s = 0, self._first_open_s
            if was_open:
                self._turn(None)
            return 0.0 if was_open else None
        self._in_a_row += 1
        if was_open:
            self._open_s = min(self._max_open_s, self._open_s * 2)
        if not was_open and self._in_a_row < self._failures:
            return None
        self._turn(self._clock() + self._open_s)
        return self._open_s

    def _turn(self, closed_again_at: float | None) -> None:
        """Begin a new period; what calls of earlier ones find no longer counts."""
        self._closed_again_at = closed_again_at
        self._period += 1


def _reached(error: StoreError | None) -> bool | None:
    """Return whether a call that ended with *error*, None for success, reached the store; None if that tells nothing."""
    return None if isinstance(error, Unsupported) else not isinstance(error, StoreUnavailable)


def _any_reached(outcomes: Sequence[Outcome]) -> bool | None:
    said = {_reached(outcome.error) for outcome in outcomes}
    return True if True in said else False if False in said else None
