"""Ranks as threads of one process: for tests and for simulated deployments."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from hicache_storage.errors import RankFailure


class ThreadGroup:
    """One rank's end of a group whose ranks are threads. Make all ends at once with `of`."""

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting = meeting
        self._rank = rank

    @classmethod
    def of(cls, size: int, *, timeout_s: float) -> list[ThreadGroup]:
        """Return the ends of a new group, one for each rank.

        Args:
            timeout_s: how long a rank waits for the others in one collective.
        """
        meeting = _Meeting(size, timeout_s)
        return [cls(meeting, rank) for rank in range(size)]

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._meeting.size

    def all_gather(self, step: str, values: Sequence[int]) -> list[list[int]]:
        return self._meeting.exchange(self._rank, step, values)

    def leave(self) -> None:
        """Make every later or waiting collective of the group fail at once: this rank is gone."""
        self._meeting.barrier.abort()


class _Meeting:
    """Where the ranks of one group meet.

    Two boards alternate: who writes on a board again has passed the other board's meeting, which
    nobody passes before having read this one.
    """

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=timeout_s)
        self._timeout_s = timeout_s
        self._boards: list[list[Sequence[int]]] = [[()] * size, [()] * size]
        self._arrivals = [0] * size
        self._lock = threading.Lock()
        self._failed_turn: int | None = None

    def exchange(self, rank: int, step: str, values: Sequence[int]) -> list[list[int]]:
        turn = self._arrivals[rank]
        board = self._boards[turn % 2]
        board[rank] = values
        with self._lock:
            self._arrivals[rank] = turn + 1
        try:
            self.barrier.wait()
        except threading.BrokenBarrierError as error:
            self._check_all_came(step, turn, error)
        return [list(theirs) for theirs in board]

    def _check_all_came(self, step: str, turn: int, error: Exception) -> None:
        """Return if the meeting of this *turn* took place all the same: a rank that had been there has left since.

        It took place for all ranks or for none, whenever they come to ask.
        """
        with self._lock:
            absent = [other for other in range(self.size) if self._arrivals[other] <= turn]
            failed = turn if self._failed_turn is None and absent else self._failed_turn
            if failed is None or turn < failed:
                return
            self._failed_turn = failed
        reason = f"did not come within {self._timeout_s:g} s, or left"
        raise RankFailure(step, dict.fromkeys(absent or range(self.size), reason)) from error
