"""Simulated time: as fast as the replay, and the same in every run."""

from __future__ import annotations

import threading


class Clock:
    """Seconds that pass only when somebody says so. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def advance(self, elapsed_s: float) -> None:
        with self._lock:
            self._now_s += elapsed_s

    def advance_to(self, now_s: float) -> None:
        """Set the time to *now_s*, unless it is later already."""
        with self._lock:
            self._now_s = max(self._now_s, now_s)
