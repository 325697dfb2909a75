"""Which store nodes answer. One transfer at a time finds out about a node that has not answered lately."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_LATELY_S = 10.0


class Peers:
    """What is known of the nodes that hold objects, by endpoint.

    A transfer from a dead node can keep its thread for a minute. While one is trying, others wait, so
    that a node costs one thread and not all.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._answered_at: dict[str, float] = {}
        self._tried: set[str] = set()

    def lively(self, endpoint: str) -> bool:
        """Whether a transfer from *endpoint* ended well in the last seconds."""
        return time.monotonic() - self._answered_at.get(endpoint, -_LATELY_S) < _LATELY_S

    @contextmanager
    def transfer(self, endpoint: str, ends_at: float) -> Iterator[bool]:
        """Give True if the block may transfer from *endpoint*; False if until *ends_at* another tried in vain."""
        with self._changed:
            while not self.lively(endpoint) and endpoint in self._tried:
                left_s = ends_at - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            alone = not self.lively(endpoint) and endpoint not in self._tried
            admitted = alone or self.lively(endpoint)
            if alone:
                self._tried.add(endpoint)
        try:
            yield admitted
        finally:
            if alone:
                with self._changed:
                    self._tried.discard(endpoint)
                    self._changed.notify_all()

    def answered(self, endpoint: str, *, well: bool) -> None:
        """A transfer from *endpoint* has ended."""
        if well:
            self._answered_at[endpoint] = time.monotonic()
        else:
            self._answered_at.pop(endpoint, None)
