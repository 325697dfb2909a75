"""How fast L3 is, measured on what was fetched, to weigh a fetch against computing the tokens."""

from __future__ import annotations

import threading

_WEIGHT = 0.25
"""Share of the newest measurement in the running mean."""


class FetchSpeed:
    """A running mean of pages a second. Thread-safe; knows nothing until the first fetch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._page_s: float | None = None

    def add(self, pages: int, elapsed_s: float) -> None:
        """Count a read of *pages* that took *elapsed_s*; a read of none tells nothing."""
        if pages <= 0:
            return
        page_s = elapsed_s / pages
        with self._lock:
            self._page_s = page_s if self._page_s is None else self._page_s + _WEIGHT * (page_s - self._page_s)

    def expected_s(self, pages: int) -> float | None:
        """Return how long reading *pages* will take, None before the first measurement."""
        with self._lock:
            return None if self._page_s is None else self._page_s * pages
