"""How much was moved and how fast, in the shape of SGLang's storage metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter

from hicache_storage.engine_integration.adapters.sglang.engine import StorageMetrics

_MOST_SAMPLES = 4096
"""A scheduler that never collects must not make the lists grow."""


class TransferStats:
    """Samples of reads and writes since they were last taken. Thread-safe."""

    def __init__(self, page_nbytes: int) -> None:
        self._page_nbytes = page_nbytes
        self._lock = Lock()
        self._samples = StorageMetrics()

    @contextmanager
    def reading(self) -> Iterator[list[int]]:
        """Measure the block; it puts the number of pages that it read into the list."""
        pages: list[int] = []
        began = perf_counter()
        yield pages
        with self._lock:
            self._add(self._samples.prefetch_pgs, self._samples.prefetch_bandwidth, sum(pages), began)

    @contextmanager
    def writing(self) -> Iterator[list[int]]:
        """Measure the block; it puts the number of pages that it wrote into the list."""
        pages: list[int] = []
        began = perf_counter()
        yield pages
        with self._lock:
            self._add(self._samples.backup_pgs, self._samples.backup_bandwidth, sum(pages), began)

    def take(self) -> StorageMetrics:
        """Return the samples, and begin anew."""
        with self._lock:
            taken, self._samples = self._samples, StorageMetrics()
        return taken

    def _add(self, pages: list[int], speeds: list[float], count: int, began: float) -> None:
        if count and len(pages) < _MOST_SAMPLES:
            pages.append(count)
            speeds.append(count * self._page_nbytes / max(perf_counter() - began, 1e-9) / 1e9)
