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

    Attributes:
        feeds_store: what reaches the host goes to a store from there. What goes there must be prefixes, so the
            end of one is then copied behind its start, piece by piece where the host is smaller.
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
        self.feeds_store = False
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
            TierFull: so many cannot be had: requests and transfers hold the rest. Nothing is evicted then,
                as far as that can be seen before.
        """
        if not self._may_have(wanted):
            self._backups.settle()
        if self._may_have(wanted):
            if self._keeps:
                self._evict_copied(wanted)
            self._evict(wanted)
        return self.slots.allocate(wanted)

    def _may_have(self, wanted: int) -> bool:
        return wanted <= self.slots.num_free + self._tree.num_evictable(Tier.DEVICE)

    def _evict(self, wanted: int) -> None:
        short = wanted - self.slots.num_free
        if short > 0:
            gone = self._tree.evict(Tier.DEVICE, short)
            self._free(gone)
            self._counters.add(telemetry.PAGES_LOST, gone.lost_pages)

    def _evict_copied(self, wanted: int) -> None:
        """Evict what has a host copy, and give one to what stands in the way, until *wanted* pages are free or nothing helps.

        It ends: each round but the last frees pages, or brings some on their way to the store that were not, or
        is followed by one that frees what it has copied.
        """
        copies = _Copying(self._tree, self._backups, feeds_store=self.feeds_store, with_relief=self._with_relief)
        while (short := wanted - self.slots.num_free) > 0:
            gone = self._tree.evict(Tier.DEVICE, short, lose_unbacked=False)
            self._free(gone)
            if gone.device_pages:
                copies.others_may_follow()
            if len(gone.device_pages) < short and not self._backups.settle() and not copies.begin(gone.write_back):
                break

    def _free(self, gone: Eviction) -> None:
        self.slots.free(gone.device_pages)
        self._host.free(gone.host_pages)
        self._counters.add(telemetry.DEVICE_PAGES_EVICTED, len(gone.device_pages))


class _Copying:
    """Copies begun for the sake of one allocation."""

    def __init__(self, tree: RadixTree, backups: Backups, *, feeds_store: bool, with_relief: bool) -> None:
        self._tree = tree
        self._backups = backups
        self._feeds_store = feeds_store
        self._with_relief = with_relief
        self._failed_before: int | None = None
        self._least_missing: int | None = None

    def others_may_follow(self) -> None:
        """Something was freed: what stands in the way next may be far from the store again."""
        self._least_missing = None

    def begin(self, nodes: Sequence[Node]) -> bool:
        """Begin to copy *nodes*, which stand in the way, parents first; say whether anything was begun.

        Nothing is once a copy has failed.
        """
        if self._failed_before is None:
            self._failed_before = self._backups.num_failed
        if self._backups.num_failed > self._failed_before:
            return False
        return self._begin_prefixes(nodes) or self._begin_ends(nodes)

    def _begin_prefixes(self, nodes: Sequence[Node]) -> bool:
        """Begin to copy what on the paths to *nodes* is neither on the host nor stored, its start first.

        Where that has not become less since the last time, the store takes nothing, and nothing is begun any more.
        """
        if not self._feeds_store:
            return False
        missing = sum(one.num_pages for one in {one: None for node in nodes for one in self._unsafe(node)})
        if self._least_missing is not None and missing >= self._least_missing:
            self._feeds_store = False
            return False
        self._least_missing = missing
        begun = 0
        for node in reversed(nodes):
            path = self._unsafe(node)
            if path:
                begun += self._backups.begin(path, with_relief=self._with_relief and not begun)
        return begun > 0

    def _begin_ends(self, nodes: Sequence[Node]) -> bool:
        """Begin to copy *nodes* from their ends, as far as the host has room."""
        begun = 0
        for node in reversed(nodes):
            wanted = node.num_pages
            copied = self._backups.begin_end_of(node, with_relief=self._with_relief and not begun)
            begun += copied
            if copied < wanted:
                break
        return begun > 0

    def _unsafe(self, node: Node) -> list[Node]:
        return [one for one in self._tree.unbacked(node) if not one.is_stored]
