"""Acknowledgements: what a background thread tells the scheduler, in order."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from hicache_storage.errors import InvariantError

T = TypeVar("T")


class AckQueue(Generic[T]):
    """An ordered queue that the scheduler empties by agreed counts only.

    The order is that of the work, the same on every rank; how much of it is ready differs between
    ranks. So a scheduler takes as many as the slowest rank has, and leaves the rest queued.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._acks: deque[T] = deque()

    def put(self, ack: T) -> None:
        with self._lock:
            self._acks.append(ack)
            self._lock.notify()

    def ready(self) -> int:
        """Return how many acknowledgements this rank has; more may come at any time, none goes away."""
        with self._lock:
            return len(self._acks)

    def take(self, count: int) -> list[T]:
        """Return the *count* oldest acknowledgements.

        Raises:
            InvariantError: there are fewer; *count* was no agreed one.
        """
        with self._lock:
            if count > len(self._acks):
                raise InvariantError(f"{count} acknowledgements asked for, {len(self._acks)} ready")
            return [self._acks.popleft() for _ in range(count)]

    def wait(self) -> T:
        """Return the oldest acknowledgement, once it is there: what is waited for must have been submitted."""
        with self._lock:
            self._lock.wait_for(lambda: self._acks)
            return self._acks.popleft()
