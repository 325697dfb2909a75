"""What the store has of each request's prefix, asked in the background, so that the scheduler never waits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial

from hicache_storage import telemetry
from hicache_storage.daemon_pool import DaemonPool
from hicache_storage.telemetry import Counters

_THREADS = 4
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Asked:
    answer: Future[int]
    asked_s: float


class Lookups:
    """Questions to the store, one a request. For one thread, beside those that ask the store.

    Args:
        lookup: how many leading pages of these hashes are there; on any thread.
        deadline_s: what is not known by then counts as nothing.
    """

    def __init__(
        self,
        lookup: Callable[[Sequence[str]], int],
        deadline_s: float,
        counters: Counters,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lookup = lookup
        self._deadline_s = deadline_s
        self._counters = counters
        self._clock = clock
        self._threads = DaemonPool(_THREADS, "hicache-lookup")
        self._open: dict[str, _Asked] = {}

    def ask(self, request_id: str, page_hashes: Sequence[str]) -> None:
        """Start to find out how many leading pages are there. One question of a request at a time."""
        answer = self._threads.submit(partial(self._lookup, page_hashes))
        self._open[request_id] = _Asked(answer, self._clock())

    def answer(self, request_id: str) -> int | None:
        """Return the number of pages; None while it is not known. The question is over once there is a number.

        What could not be found out, or not in time, is 0.
        """
        asked = self._open[request_id]
        if not asked.answer.done():
            if self._clock() - asked.asked_s < self._deadline_s:
                return None
            self._counters.add(f"{telemetry.LOOKUP_FAILED}.deadline")
            self.forget(request_id)
            return 0
        del self._open[request_id]
        error = asked.answer.exception()
        if error is not None:
            self._counters.add(f"{telemetry.LOOKUP_FAILED}.{type(error).__name__}")
            _log.error("vllm.lookup_fault request=%s", request_id, exc_info=error)
            return 0
        return asked.answer.result()

    def is_asked(self, request_id: str) -> bool:
        """Return whether a question of the request is open."""
        return request_id in self._open

    def forget(self, request_id: str) -> None:
        """Nobody waits for this request's answer any more."""
        asked = self._open.pop(request_id, None)
        if asked is not None:
            asked.answer.cancel()

    def wait(self, timeout_s: float) -> None:
        """Sleep until some answer is there, at most *timeout_s*; not at all if nothing is asked."""
        if self._open:
            wait([asked.answer for asked in self._open.values()], timeout_s, FIRST_COMPLETED)

    def close(self) -> None:
        """Ask nothing any more; questions on their way end on their own."""
        self._open.clear()
        self._threads.close(wait=False, cancel=True)
