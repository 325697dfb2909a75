"""Room on the device: pages for prompts and loads, made without losing what should be kept. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_storage import telemetry
from hicache_storage.engine_integration.controller.copies import Backups
from hicache_storage.engine_integration.controller.pools import Pools
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.radix import Eviction, Node, RadixTree, Tier
from hicache_storage.telemetry import Counters


class DeviceRoom:
    """Allocates device pages.

    Under write_through and write_back nothing is evicted whose only copy is the device's, as long as the
    host can take it: eviction waits for copies that run, and begins those that are missing. Under
    write_through_selective, prefixes that were used too rarely are lost.
    """

    def __init__(
        self,
        tree: RadixTree,
        pools: Pools,
        backups: Backups,
        options: TierOptions,
        counters: Counters,
    ) -> None:
        self.slots = pools.device
        self._tree = tree
        self._host = pools.host
        self._backups = backups
        self._keeps = options.write_policy != "write_through_selective"
        self._with_relief = options.store_backpressure
        self._counters = counters

    def allocate(self, wanted: int) -> list[int]:
        """Return *wanted* pages, all or none; the caller's until the tree takes or it frees them.

        Blocks for running copies, and with ``store_backpressure`` for writes to L3, rather than lose pages.

        Raises:
            TierFull: so many cannot be had: requests and transfers hold the rest.
        """
        if wanted > self.slots.num_free:
            self._evict(wanted)
        return self.slots.allocate(wanted)

    def _evict(self, wanted: int) -> None:
        while self._keeps and (short := wanted - self.slots.num_free) > 0:
            gone = self._tree.evict(Tier.DEVICE, short, lose_unbacked=False)
            self._free(gone)
            if len(gone.device_pages) < short and not self._backups.settle() and not self._back_up(gone.write_back):
                break
        short = wanted - self.slots.num_free
        if short > 0:
            gone = self._tree.evict(Tier.DEVICE, short)
            self._free(gone)
            self._counters.add(telemetry.PAGES_LOST, gone.lost_pages)

    def _free(self, gone: Eviction) -> None:
        self.slots.free(gone.device_pages)
        self._host.free(gone.host_pages)
        self._counters.add(telemetry.DEVICE_PAGES_EVICTED, len(gone.device_pages))

    def _back_up(self, nodes: Sequence[Node]) -> bool:
        """Copy what stands in the way to the host, with all above it that is not there; say whether anything could be copied.

        What goes to L3 must be prefixes, so the end of one is worth nothing on the host without its start.
        """
        copied = 0
        for node in reversed(nodes):
            path = self._tree.unbacked(node)
            if path:
                copied += self._backups.begin(path, with_relief=self._with_relief and not copied)
        return copied > 0
