"""An L3 that knows which pages it holds and has no bytes: for replays of traces that are longer than any disk."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hicache_storage import telemetry
from hicache_storage.telemetry import Counters
from hicache_storage.types import ALREADY_THERE, HIT, MISS, STORED, Outcome


class KeyStore:
    """Pages by name, the least recently used first. Shared by all clients; thread-safe.

    The ranks of an instance read and write all objects of a page together, so what holds for a page holds
    for its objects.

    Args:
        capacity: most pages; None without limit.

    Attributes:
        num_evicted: pages that had to make room.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.num_evicted = 0
        self._lock = threading.Lock()
        self._pages: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def leading(self, names: Sequence[str]) -> int:
        """Return how many leading pages of *names* are there. No use is counted, as in a real lookup."""
        with self._lock:
            return self._leading(names)

    def use(self, names: Sequence[str], prefix: Sequence[str] = ()) -> int:
        """Return how many leading pages of *names* are there, and make them, and *prefix* even more, the last to go."""
        with self._lock:
            there = self._leading(names)
            self._refresh([*prefix, *names[:there]])
        return there

    def add(self, names: Sequence[str], prefix: Sequence[str] = ()) -> list[bool]:
        """Hold *names* behind *prefix* and return which of them are new; a store that is too small keeps the leading ones.

        Without the last page of *prefix* none is held.
        """
        kept = names if self.capacity is None else names[: max(0, self.capacity - len(prefix))]
        with self._lock:
            if prefix and prefix[-1] not in self._pages:
                return []
            fresh = [name not in self._pages for name in kept]
            self._pages.update(dict.fromkeys(kept))
            self._refresh([*prefix, *kept])
            while self.capacity is not None and len(self._pages) > self.capacity:
                self._pages.popitem(last=False)
                self.num_evicted += 1
        return fresh

    def clear(self) -> int:
        """Forget every page; return how many there were."""
        with self._lock:
            count = len(self._pages)
            self._pages.clear()
        return count

    def _leading(self, names: Sequence[str]) -> int:
        return next((at for at, name in enumerate(names) if name not in self._pages), len(names))

    def _refresh(self, names: Sequence[str]) -> None:
        """Make the first of *names* the last to go, so that a prefix is evicted from its end, as page_store/recency.py does."""
        if self.capacity is not None:
            for name in reversed(names):
                if name in self._pages:
                    self._pages.move_to_end(name)


@dataclass(frozen=True, slots=True)
class KeyClient:
    """All ranks of one instance as one client of a `KeyStore`.

    Attributes:
        scope: instances of different scopes share nothing.
        read_nbytes, stored_nbytes: bytes of a page that the ranks read, copies included, and store.
        after_read: called with the number of pages that were read, before `read_pages` returns.
    """

    store: KeyStore
    counters: Counters
    scope: str
    read_nbytes: int
    stored_nbytes: int
    after_read: Callable[[int], None]

    def lookup_prefix(self, page_hashes: Sequence[str]) -> int:
        return self.store.leading(self._names(page_hashes))

    def read_pages(
        self, page_hashes: Sequence[str], pages: Sequence[memoryview], *, prefix: Sequence[str] = ()
    ) -> list[Outcome]:
        hits = self.store.use(self._names(page_hashes), self._names(prefix))
        self.counters.add(telemetry.PAGES_HIT, hits)
        self.counters.add(telemetry.PAGES_MISSED, len(pages) - hits)
        self.counters.add(telemetry.NBYTES_READ, hits * self.read_nbytes)
        self.after_read(hits)
        return [HIT] * hits + [MISS] * (len(pages) - hits)

    def write_pages(
        self, page_hashes: Sequence[str], pages: Sequence[memoryview], *, prefix: Sequence[str] = ()
    ) -> list[Outcome]:
        fresh = self.store.add(self._names(page_hashes), self._names(prefix))
        stored = sum(fresh)
        self.counters.add(telemetry.PAGES_STORED, stored)
        self.counters.add(telemetry.PAGES_ALREADY_THERE, len(fresh) - stored)
        self.counters.add(telemetry.NBYTES_STORED, stored * self.stored_nbytes)
        outcomes = [STORED if is_new else ALREADY_THERE for is_new in fresh]
        return outcomes + [MISS] * (len(pages) - len(fresh))

    def clear(self) -> int:
        return self.store.clear()

    def _names(self, page_hashes: Sequence[str]) -> Sequence[str]:
        return [page_hash + self.scope for page_hash in page_hashes] if self.scope else page_hashes
