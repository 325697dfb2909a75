"""Room on the host: pages to copy or to fetch into, made by evicting what the policy gives up first. Torch-free."""

from __future__ import annotations

from collections.abc import Callable

from hicache_storage import telemetry
from hicache_storage.engine_integration.radix import RadixTree, Tier
from hicache_storage.engine_integration.tiers.slots import PageAllocator
from hicache_storage.telemetry import Counters


class HostRoom:
    """Allocates host pages.

    Args:
        relief: ends one thing that holds host pages for a while, and says whether there was one.
    """

    def __init__(self, tree: RadixTree, slots: PageAllocator, counters: Counters) -> None:
        self.slots = slots
        self.relief: Callable[[], bool] = lambda: False
        self._tree = tree
        self._counters = counters

    def allocate_most(self, wanted: int) -> list[int]:
        """Return up to *wanted* pages, as many as can be had; the caller's until the tree takes or it frees them."""
        self._evict(wanted)
        return self.slots.allocate(min(wanted, self.slots.num_free))

    def allocate_with_relief(self, wanted: int) -> list[int]:
        """Return up to *wanted* pages; none only if nothing that holds pages will ever let go of them."""
        pages = self.allocate_most(wanted)
        while not pages and self.relief():
            pages = self.allocate_most(wanted)
        return pages

    def _evict(self, wanted: int) -> None:
        short = wanted - self.slots.num_free
        if short > 0:
            gone = self._tree.evict(Tier.HOST, short, copies=True)
            self.slots.free(gone.host_pages)
            self._counters.add(telemetry.HOST_PAGES_EVICTED, len(gone.host_pages))
            self._counters.add(telemetry.PAGES_LOST, gone.lost_pages)
