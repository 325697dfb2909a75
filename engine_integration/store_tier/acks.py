"""Acknowledgements: what a background thread tells the scheduler, in order."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from hicache_storage.engine_integration.consensus.decorator import rank_consensus
from hicache_storage.errors import InvariantError, RankFailure

T = TypeVar("T")


class AckQueue(Generic[T]):
    """An ordered queue that the scheduler empties by agreed counts only.

    The order is that of the work, the same on every rank; how much of it is ready differs between ranks. The first
    stage says how many are taken: a rank that has not so many yet waits, and leaves queued what it has more.

    Args:
        what: the acknowledgements, for messages.
        rank: whose queue it is, for messages.
        patience_s: how long `take` waits for acknowledgements that are not there yet.
    """

    def __init__(self, what: str = "acknowledgements", *, rank: int = 0, patience_s: float = 0.0) -> None:
        self._what = what
        self._rank = rank
        self._patience_s = patience_s
        self._lock = threading.Condition()
        self._acks: deque[T] = deque()

    def put(self, ack: T) -> None:
        with self._lock:
            self._acks.append(ack)
            self._lock.notify()

    def ready(self) -> int:
        """Return how many acknowledgements this rank has; more may come at any time, none goes away."""
        return len(self._acks)

    @rank_consensus(same_params=("self._what", "count"), same_results="result[*].identity")
    def take(self, count: int) -> list[T]:
        """Return the *count* oldest acknowledgements.

        Raises:
            InvariantError: there are fewer, and this queue does not wait; *count* was no agreed one.
            RankFailure: there still are fewer when the patience has ended; none is taken.
        """
        with self._lock:
            if self._lock.wait_for(lambda: count <= len(self._acks), self._patience_s):
                return [self._acks.popleft() for _ in range(count)]
            missing = f"{count} {self._what} asked for, {len(self._acks)} ready"
        if not self._patience_s:
            raise InvariantError(missing)
        raise RankFailure(self._what, {self._rank: f"{missing} after {self._patience_s:g} s"})

    @rank_consensus(same_params="self._what", same_results="result.identity")
    def wait(self) -> T:
        """Return the oldest acknowledgement, once it is there: what is waited for must have been submitted.

        It takes as long as the operation: the deadlines are those of the store, and of the group that agrees on it.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._acks)
            return self._acks.popleft()
