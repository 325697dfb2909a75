"""Bytes that may be under way at once, counted exactly."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import accumulate


class Budget:
    """A number of bytes that may be taken at once."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._free = nbytes
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @property
    def in_flight_nbytes(self) -> int:
        with self._changed:
            return self._nbytes - self._free

    def take(self, nbytes: int, *, wait_s: float) -> int | None:
        """Take *nbytes* and return what was taken, to be given back; None if there was no room in time.

        Whoever wants more than all of it takes all of it. First come, first served: many small ones do not
        keep a large one waiting.
        """
        wanted, turn = min(nbytes, self._nbytes), object()
        with self._changed:
            self._waiting.append(turn)
            try:
                fits = self._changed.wait_for(lambda: self._waiting[0] is turn and self._free >= wanted, wait_s)
                if fits:
                    self._free -= wanted
                return wanted if fits else None
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()

    def take_leading(self, sizes: Sequence[int]) -> tuple[int, int]:
        """Take the leading *sizes* that fit now; return how many those are, and their sum, which is to be given back."""
        with self._changed:
            count = leading(sizes, self._free)
            taken = sum(sizes[:count])
            self._free -= taken
            return count, taken

    def give_back(self, nbytes: int) -> None:
        """Return what was taken."""
        with self._changed:
            self._free += nbytes
            self._changed.notify_all()


def leading(sizes: Sequence[int], nbytes: int) -> int:
    """Return how many leading *sizes* are at most *nbytes* together."""
    return next((count for count, total in enumerate(accumulate(sizes)) if total > nbytes), len(sizes))
