"""Names of what is counted and logged, and the two small tools that do it. Handlers and exporters are the host's."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import Counter

PAGES_HIT = "pages_hit"
PAGES_MISSED = "pages_missed"
PAGES_FAILED = "pages_failed"
PAGES_STORED = "pages_stored"
PAGES_ALREADY_THERE = "pages_already_there"
PAGES_NOT_STORED = "pages_not_stored"
OBJECTS_READ = "objects_read"
OBJECTS_STORED = "objects_stored"
OBJECTS_QUARANTINED = "objects_quarantined"
NBYTES_READ = "nbytes_read"
NBYTES_STORED = "nbytes_stored"
NAMESPACE_CONFLICTS = "namespace_conflicts"

PAGES_BACKED_UP = "pages_backed_up"
PAGES_LOADED = "pages_loaded"
PAGES_PREFETCHED = "pages_prefetched"
PAGES_WRITTEN_BACK = "pages_written_back"
PAGES_NOT_WRITTEN_BACK = "pages_not_written_back"
PAGES_LOST = "pages_lost"
DEVICE_PAGES_EVICTED = "device_pages_evicted"
HOST_PAGES_EVICTED = "host_pages_evicted"
BACKUP_FAILED = "backup_failed"
LOAD_FAILED = "load_failed"
LOADS_DECLINED = "loads_declined"
PREFETCH_DECLINED_SHORT = "prefetch_declined.short"
PREFETCH_DECLINED_BUDGET = "prefetch_declined.budget"
PREFETCH_DECLINED_ROOM = "prefetch_declined.room"
PREFETCH_DECLINED_SLOW = "prefetch_declined.slower_than_prefill"
PREFETCH_MISSED = "prefetch_missed"
PREFETCH_STOPPED = "prefetch_stopped"

READ_FAILED = "read_failed"
WRITE_FAILED = "write_failed"
LOOKUP_FAILED = "lookup_failed"
TOUCH_FAILED = "touch_failed"
PREFETCH_FAILED = "prefetch_failed"
WRITEBACK_FAILED = "writeback_failed"
ADAPTER_FAILED = "adapter_failed"
"""Prefixes of the counters by cause: ``read_failed.CorruptObject``, ``write_failed.StoreFull``, ..."""

STORE_CALL = "store_call"
"""Prefix of the times of calls to a store, by operation and result: ``store_call.read.done``, ``store_call.read.StoreUnavailable``."""

STORE_METRICS = "store_metrics"
"""Prefix of what the layer ``metrics`` around a store counts, see `hicache_storage.middleware.StoreMetrics.counts`."""

TIMES = "times"
"""What `Counters.times` puts in front of every name."""

BOUNDS_MS = (1, 5, 25, 100, 500, 1_000, 2_500, 5_000, 10_000, 30_000)

_WARN_EVERY_S = 60.0


class Counters:
    """Thread-safe counts of what happened since the start, and times of how long it took, by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._times: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        if amount:
            with self._lock:
                self._counts[name] += amount

    def snapshot(self) -> dict[str, int]:
        """Return a copy of all counts that are not zero."""
        with self._lock:
            return {name: count for name, count in self._counts.items() if count}

    def observe(self, name: str, elapsed_s: float) -> None:
        """Count one *name* that took *elapsed_s*."""
        bound = bisect_left(BOUNDS_MS, elapsed_s * 1e3)
        with self._lock:
            self._times[f"{TIMES}.{name}.{BOUNDS_MS[bound] if bound < len(BOUNDS_MS) else 'more'}"] += 1
            self._times[f"{TIMES}.{name}.us"] += round(elapsed_s * 1e6)

    def times(self) -> dict[str, int]:
        """Return how often each *name* took how long: counts, which several ranks' may be added up of.

        ``times.{name}.500`` is how often it took at most 500 ms and more than the bound before, ``times.{name}.more``
        how often longer than the last of `BOUNDS_MS`, and ``times.{name}.us`` the microseconds in all.
        """
        with self._lock:
            return dict(self._times)

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counts[name]


class RareWarnings:
    """Logs a warning once per cause and minute, so that a dead store does not fill the disk with its obituary."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._last: dict[str, float] = {}

    def warn(self, cause: str, event: str, *args: object, exc_info: bool = False) -> None:
        """Log *event* %-formatted with *args* unless *cause* was logged within the last minute."""
        now = time.monotonic()
        with self._lock:
            last = self._last.get(cause)
            if last is not None and now - last < _WARN_EVERY_S:
                return
            self._last[cause] = now
        self._log.warning(event, *args, exc_info=exc_info)
