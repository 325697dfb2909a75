"""How long the requests of one call may take."""

from __future__ import annotations

import math
import time

from hicache_storage.deadline import remaining_s


class Patience:
    """The deadlines of one call's operations, also where they run on several threads.

    Each operation has the store's deadline from its own beginning, so a large batch takes as long
    as it moves. A server that falls silent costs the batch that deadline once: as soon as nothing has been
    answered for so long, operations that did not begin yet are given up.
    Made on the caller's thread, whose outer deadline it keeps.
    """

    def __init__(self, deadline_s: float) -> None:
        now = time.monotonic()
        self._deadline_s = deadline_s
        self._outer_ends_at = now + remaining_s(math.inf)
        self._answered_at = now

    def begin(self) -> float:
        """Return when an operation that begins now must have ended, on the monotonic clock.

        Raises:
            TimeoutError: the server has been silent for too long, or the caller has no time left.
        """
        now = time.monotonic()
        if now - self._answered_at >= self._deadline_s:
            raise TimeoutError("the server is silent, as the requests before this one showed")
        left_s(self._outer_ends_at)
        return min(now + self._deadline_s, self._outer_ends_at)

    def answered(self) -> None:
        """Note that the server is alive."""
        self._answered_at = time.monotonic()


def left_s(ends_at: float) -> float:
    """Return the seconds until *ends_at*, more than 0.

    Raises:
        TimeoutError: it is past.
    """
    left = ends_at - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer within the deadline")
    return left
