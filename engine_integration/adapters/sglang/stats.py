"""How much was moved and how fast, in the shape of SGLang's storage metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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

    def reading(self) -> AbstractContextManager[list[int]]:
        """Measure the block; it puts the number of pages that it read into the list."""
        return self._measured(lambda samples: (samples.prefetch_pgs, samples.prefetch_bandwidth))

    def writing(self) -> AbstractContextManager[list[int]]:
        """Measure the block; it puts the number of pages that it wrote into the list."""
        return self._measured(lambda samples: (samples.backup_pgs, samples.backup_bandwidth))

    def take(self) -> StorageMetrics:
        """Return the samples, and begin anew."""
        with self._lock:
            taken, self._samples = self._samples, StorageMetrics()
        return taken

    @contextmanager
    def _measured(self, kind: Callable[[StorageMetrics], tuple[list[int], list[float]]]) -> Iterator[list[int]]:
        moved: list[int] = []
        began = perf_counter()
        yield moved
        count = sum(moved)
        with self._lock:
            pages, speeds = kind(self._samples)
            if count and len(pages) < _MOST_SAMPLES:
                pages.append(count)
                speeds.append(count * self._page_nbytes / max(perf_counter() - began, 1e-9) / 1e9)
