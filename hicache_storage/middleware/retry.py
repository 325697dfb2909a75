"""Trying again what may work later, with full jitter, as long as the deadline allows."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from hicache_storage.deadline import remaining_s
from hicache_storage.errors import StoreError
from hicache_storage.middleware.layer import Layer, built_once
from hicache_storage.store import ObjectStore
from hicache_storage.types import ObjectWrite, Outcome, RangeRead

T = TypeVar("T")
R = TypeVar("R", RangeRead, ObjectWrite, str)

_NO_LIMIT_S = 1e9


class RetryLayer(Layer):
    """Repeats operations that failed with a retryable error; of a batch, only the requests that did.

    The pause before attempt ``n + 1`` is drawn evenly from ``[0, min(cap_s, base_s * 2**n))``: clients that
    failed together do not come back together. No pause is begun that the deadline would cut.

    Args:
        attempts: how often an operation is tried in all, ``>= 1``.
        sleep: replaced in tests.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        attempts: int,
        base_s: float = 0.05,
        cap_s: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self._attempts = attempts
        self._base_s = base_s
        self._cap_s = cap_s
        self._sleep = sleep
        self._random = random.SystemRandom()  # no state that forked processes would share

    def single(self, op: str, key: str, call: Callable[[], T]) -> T:
        for attempt in range(1, self._attempts + 1):
            try:
                return call()
            except StoreError as error:
                if not error.retryable or not self._pause(attempt):
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def batch(self, op: str, requests: Sequence[R], call: Callable[[Sequence[R]], list[Outcome]]) -> list[Outcome]:
        listed = built_once(op, requests)
        outcomes = list(call(listed))
        for attempt in range(1, self._attempts):
            again = [i for i, outcome in enumerate(outcomes) if outcome.error is not None and outcome.error.retryable]
            if not again or not self._pause(attempt):
                break
            repeated = [listed[index] for index in again]
            for request in repeated:
                _start_over(request)
            for index, outcome in zip(again, call(repeated), strict=True):
                outcomes[index] = outcome
        return outcomes

    def _pause(self, attempt: int) -> bool:
        """Wait before the attempt after *attempt*; False if there is none or no time for it."""
        if attempt >= self._attempts:
            return False
        pause_s = self._random.uniform(0, min(self._cap_s, self._base_s * 2**attempt))
        if remaining_s(_NO_LIMIT_S) <= pause_s:
            return False
        self._sleep(pause_s)
        return True


def _start_over(request: RangeRead | ObjectWrite | str) -> None:
    """Tell whoever hashes the range while it is filled that it is filled from its start again."""
    if isinstance(request, RangeRead) and request.on_filled is not None:
        request.on_filled(0)
