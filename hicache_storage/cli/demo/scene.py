"""What every step of the demo shares: the model, the grid of objects, the store, and what an engine is started with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hicache_storage.config import Secret
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig, StoreTarget
from hicache_storage.engine_integration.reference_engine.model_folder import ModelSource
from hicache_storage.engine_integration.reference_engine.sizes import check_config
from hicache_storage.layout import Grid, KVShape, Namespace, Topology, Variant
from hicache_storage.registry import ResolvedStore


@dataclass(frozen=True, slots=True)
class Scene:
    """The model, what is shared of it, and how to go on.

    Attributes:
        grid: the coarsest that the writer's shards are made of.
        device_pages: of each engine; every conversation fits.
        scope: cache salt of all that is stored; None for what everybody shares.
        decode: tokens to text, special ones left out.
        say: shows progress.
    """

    source: ModelSource
    shape: KVShape
    grid: Grid
    dtype: str
    store: ResolvedStore
    writer: Topology
    device_pages: int
    max_new_tokens: int
    scope: str | None
    timeout_s: float
    decode: Callable[[Sequence[int]], str]
    say: Callable[[str], None]

    @property
    def namespace(self) -> Namespace:
        variant = Variant(weights_revision=self.source.revision)
        return Namespace.of(model_id=self.source.name, shape=self.shape, grid=self.grid, variant=variant)

    def engine(self, topology: Topology, *, writes: bool) -> EngineConfig:
        """Return what an engine of *topology* on the store is started with. It restores all that is there, however short.

        Raises:
            ConfigError: the model cannot be divided among the ranks.
            LayoutError: its KV cannot.
        """
        config = EngineConfig(
            model_id=self.source.name,
            model=str(self.source.folder),
            weights_revision=self.source.revision,
            topology=topology.name,
            dtype=self.dtype,
            page_tokens=self.shape.page_tokens,
            device_pages=self.device_pages,
            max_running=1,
            tiers=TierOptions(
                prefetch_policy="wait_complete",
                prefetch_threshold_tokens=self.shape.page_tokens,
                load_back_threshold_tokens=0,
            ),
            store=store_target(self.store),
            layer_partition=self.grid.layer_partition,
            head_partition=self.grid.head_partition,
            writes_store=writes,
            timeout_s=self.timeout_s,
            background_timeout_s=self.timeout_s,
        )
        check_config(config)
        return config


def store_target(resolved: ResolvedStore) -> StoreTarget:
    """Return how ranks open the store that this process resolved. Secrets are in the clear: for pipes only."""
    kind = resolved.store_type
    given = {
        setting.name: _plain(setting.value)
        for setting in resolved.settings
        if setting.source != "default" and setting.value is not None
    }
    return StoreTarget(backend=f"{kind.__module__}:{kind.__qualname__}", extra_config=json.dumps(given))


def _plain(value: object) -> str | int | float | bool:
    """Return an option's value as JSON can carry it; a source could have given it in this form."""
    if isinstance(value, Secret):
        return value.reveal()
    return value if isinstance(value, (str, int, float, bool)) else str(value)
