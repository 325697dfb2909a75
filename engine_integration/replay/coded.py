"""KV whose every byte follows from what it is the KV of: so that every page which is served can be judged."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

from hicache_storage.engine_integration.controller import LoadJob, NoCopies
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.engine_integration.store_tier.page_group import PageGroup, Part
from hicache_storage.errors import ConfigError
from hicache_storage.layout import Namespace, ShardLayout
from hicache_storage.store import ObjectStore
from hicache_storage.telemetry import Counters


def coded_page(layout: ShardLayout, page_hash: str) -> bytes:
    """Return a rank's page of the prefix *page_hash*, in page_unified order; no two cells of any page are alike.

    A cell is one layer of one head group. Its bytes depend on the prefix, the layer and the group's first
    head, all of them global: ranks of different topologies compute the same KV.
    """
    heads = layout.shard.heads
    groups = heads[:: layout.group_heads] if layout.group_heads else range(1)
    return b"".join(
        hashlib.shake_128(f"{page_hash}/{layer}/{head}".encode()).digest(layout.cell_nbytes)
        for head in groups
        for layer in layout.shard.layers
    )


class Memory:
    """Pages of one tier of one rank. Takes memory as it is written to, not before."""

    def __init__(self, pages: int, page_nbytes: int) -> None:
        try:
            memory = mmap.mmap(-1, pages * page_nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise ConfigError(f"{pages} pages of {page_nbytes} bytes: {error.strerror}; give smaller tiers") from error
        self._bytes = memoryview(memory)
        self._page_nbytes = page_nbytes

    def page(self, page: int) -> memoryview:
        return self._bytes[page * self._page_nbytes : (page + 1) * self._page_nbytes]


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What one rank holds."""

    layout: ShardLayout
    device: Memory
    host: Memory
    writes: bool


class CodedMemory:
    """Device and host memory of all ranks of one instance.

    Attributes:
        backup, load: copy pages between the two, at once.
        num_judged, num_wrong: device pages that `judge` has compared, on each rank.
    """

    def __init__(self, layouts: Sequence[tuple[ShardLayout, bool]], *, device_pages: int, host_pages: int) -> None:
        self.ranks = [
            RankMemory(layout, Memory(device_pages, layout.page_nbytes), Memory(host_pages, layout.page_nbytes), writes)
            for layout, writes in layouts
        ]
        self.backup = _Copies(self.ranks, to_host=True)
        self.load = _Copies(self.ranks, to_host=False)
        self.num_judged = 0
        self.num_wrong = 0

    def compute(self, pages: Sequence[int], page_hashes: Sequence[str]) -> None:
        """Fill device *pages* with the KV of *page_hashes*, as a forward pass would."""
        for rank in self.ranks:
            for page, page_hash in zip(pages, page_hashes, strict=True):
                rank.device.page(page)[:] = coded_page(rank.layout, page_hash)

    def judge(self, pages: Sequence[int], page_hashes: Sequence[str]) -> None:
        """Compare every byte of device *pages* with the KV of *page_hashes*."""
        for rank in self.ranks:
            for page, page_hash in zip(pages, page_hashes, strict=True):
                self.num_judged += 1
                self.num_wrong += rank.device.page(page) != coded_page(rank.layout, page_hash)

    def connect(self, store: ObjectStore, namespace: Namespace, counters: Counters) -> PageGroup:
        """Return the pages of all ranks in *store*: a page counts where every rank has its part of it."""
        parts = [
            Part(
                f"rank {number}",
                PageStore(store, namespace, rank.layout, read_only=not rank.writes, counters=counters),
                rank.host.page,
                writes=rank.writes,
            )
            for number, rank in enumerate(self.ranks)
        ]
        return PageGroup(parts[0], parts[1:])


class _Copies:
    """Copies pages of every rank before `submit` returns."""

    def __init__(self, ranks: Sequence[RankMemory], *, to_host: bool) -> None:
        self._ranks = ranks
        self._to_host = to_host
        self._done = NoCopies()

    def submit(self, device_pages: Sequence[int], host_pages: Sequence[int]) -> LoadJob:
        for rank in self._ranks:
            for device_page, host_page in zip(device_pages, host_pages, strict=True):
                device, host = rank.device.page(device_page), rank.host.page(host_page)
                if self._to_host:
                    host[:] = device
                else:
                    device[:] = host
        return self._done.submit(device_pages, host_pages)
