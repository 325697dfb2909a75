"""What is simulated: how many instances of which topology, tiers of which sizes, under which policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.replay.size import TierSize
from hicache_storage.engine_integration.replay.trace import TraceSummary
from hicache_storage.errors import ConfigError
from hicache_storage.layout import Grid, KVShape, ShardLayout, Topology, coarsest_grid

KeyScheme: TypeAlias = Literal["unified", "rank-suffix"]
KEY_SCHEMES: tuple[KeyScheme, ...] = ("unified", "rank-suffix")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """A simulated deployment.

    Attributes:
        topologies: one for each instance; requests go to them in turn.
        tiers: `host_nbytes` and `host_ratio` size the host where *host* does not.
        device, host: room of each instance over all its ranks; None is more than the trace needs.
        store: room of the store that all instances share; None without limit.
        key_scheme: ``rank-suffix`` names ranks in keys as other engines do, so that instances of
            different topologies share nothing.
        store_tokens_per_s: simulated speed of L3 reads; None takes no time.
        concurrency: requests that each instance has at a time.
        check_every: requests between two counts of all books; 0 counts them at the end alone.

    Raises:
        ConfigError: sizes contradict each other or mean nothing here.
        LayoutError: the topologies have no grid in common, or cannot run a model of *shape*.
    """

    shape: KVShape
    topologies: Sequence[Topology] = (Topology(),)
    tiers: TierOptions = field(default_factory=TierOptions)
    device: TierSize | None = None
    host: TierSize | None = None
    store: TierSize | None = None
    key_scheme: KeyScheme = "unified"
    store_tokens_per_s: float | None = None
    concurrency: int = 1
    check_every: int = 0

    def __post_init__(self) -> None:
        tiers = self.tiers
        if tiers.host_memory_fraction is not None:
            raise ConfigError("host_memory_fraction is a share of a real machine's memory; give the host's size")
        if self.host is not None and (tiers.host_nbytes, tiers.host_ratio) != (None, None):
            raise ConfigError(f"host size {self.host.text} and a host size of each rank; give one of them")
        if tiers.host_ratio is not None and self.device is None:
            raise ConfigError(f"host_ratio = {tiers.host_ratio} of a device without a size; give the device's size")
        coarsest_grid(self.shape, list(self.topologies))

    @property
    def grid(self) -> Grid:
        """The coarsest grid that every topology can write."""
        return coarsest_grid(self.shape, list(self.topologies))

    def layouts(self, topology: Topology) -> list[tuple[ShardLayout, bool]]:
        """Return what each rank of *topology* holds of a page, and whether it is an elected writer."""
        grid = self.grid
        return [
            (
                ShardLayout(self.shape, grid, topology.shard(self.shape, tp_rank=tp_rank, pp_rank=pp_rank)),
                topology.is_writer(self.shape, tp_rank=tp_rank),
            )
            for tp_rank, pp_rank in topology.ranks()
        ]

    def device_pages(self, trace: TraceSummary, page_nbytes: int) -> int:
        """Return the device's pages, *page_nbytes* over all ranks each; never more than the trace can fill."""
        if self.device is None:
            return self._all_pages(trace)
        return min(self._all_pages(trace), self._pages_of("device", self.device, page_nbytes))

    def host_pages(self, trace: TraceSummary, rank_nbytes: Sequence[int]) -> int:
        """Return the host's pages, *rank_nbytes* on each rank; never more than the trace can fill."""
        # One more of the longest prompts may always be on its way, within the share that prefetches may hold.
        most = self._all_pages(trace) + int(self._pages(trace.longest) / self.tiers.prefetch_host_fraction)
        if self.host is not None:
            return min(most, self._pages_of("host", self.host, sum(rank_nbytes)))
        if self.tiers.host_nbytes is not None:
            nbytes = self.tiers.host_nbytes
            each = TierSize(nbytes, is_tokens=False, text=f"{nbytes} bytes of each rank")
            return min(most, self._pages_of("host", each, max(rank_nbytes)))
        if self.tiers.host_ratio is not None and self.device is not None:
            device_pages = self._pages_of("device", self.device, sum(rank_nbytes))
            return min(most, max(1, int(self.tiers.host_ratio * device_pages)))
        return most

    def store_pages(self) -> int | None:
        """Return the store's pages; None without limit."""
        if self.store is None:
            return None
        return self._pages_of("store", self.store, self.shape.page_nbytes)

    def _pages_of(self, tier: str, size: TierSize, page_nbytes: int) -> int:
        return size.num_pages(tier, page_tokens=self.shape.page_tokens, page_nbytes=page_nbytes)

    def _all_pages(self, trace: TraceSummary) -> int:
        return self._pages(trace.num_tokens) + trace.num_requests

    def _pages(self, tokens: int) -> int:
        return tokens // self.shape.page_tokens + 1
