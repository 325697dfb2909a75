"""How one rank of this engine reaches a store: which objects are its own, who writes them. Free of torch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from hicache_storage.config import Setting, load_extra_config
from hicache_storage.deadline import within
from hicache_storage.engine_integration.page_store import descriptor_key
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig, StoreTarget
from hicache_storage.errors import CorruptObject, RangeError
from hicache_storage.layout import Grid, GridPlan, KVShape, Namespace, Shard, ShardLayout, Topology, Variant, plan_grid
from hicache_storage.middleware import GuardLayer
from hicache_storage.registry import resolve_store
from hicache_storage.store import ObjectStore

_BREAKER_FAILURES = 3
"""Calls in a row that found no store, after which an engine asks it only now and then."""

_BREAKER = "middleware.breaker_failures"

_ANSWER_S = 10.0
"""The engine stands still while a store is asked for its first answer."""


@dataclass(frozen=True, slots=True)
class StoreRole:
    """What one rank has to do with any store.

    Attributes:
        layout: its host pages, and the objects they are cut into.
        is_elected: it writes its shard; no other rank holds the same bytes and does so too.
        can_write: every rank's shard is made of whole objects, so that the ranks together write whole pages.
    """

    namespace: Namespace
    layout: ShardLayout
    is_elected: bool
    can_write: bool


def grid_plan(config: EngineConfig, shape: KVShape) -> GridPlan:
    """Return the grid of an engine's objects and what it costs: as configured, else the coarsest for its topology.

    Raises:
        LayoutError: the topology cannot run the model, or the configured grid does not fit it.
    """
    return plan_grid(
        shape, [config.ranks], layer_partition=config.layer_partition, head_partition=config.head_partition
    )


def store_role(config: EngineConfig, shape: KVShape, *, tp_rank: int, pp_rank: int) -> StoreRole:
    """Return what the rank has to do with a store. Raises as `grid_plan` does."""
    topology = config.ranks
    shard = topology.shard(shape, tp_rank=tp_rank, pp_rank=pp_rank)
    elected = topology.is_writer(shape, tp_rank=tp_rank)
    variant = Variant(weights_revision=config.weights_revision)
    if config.key_scheme == "rank-suffix":
        layout, can_write = _own_layout(shape, shard), True
        variant = replace(variant, component=_rank_name(topology, shape, tp_rank, pp_rank))
    else:
        plan = grid_plan(config, shape)
        layout, can_write = ShardLayout(shape, plan.grid, shard), plan.shareable
    namespace = Namespace.of(model_id=config.model_id, shape=layout.shape, grid=layout.grid, variant=variant)
    return StoreRole(namespace, layout, elected, can_write and config.writes_store)


def open_target(target: StoreTarget) -> ObjectStore:
    """Return the open store; the caller closes it. Raises as `registry.open_store` does.

    It has a circuit breaker unless *target* says otherwise: requests, and whoever ends an engine, wait for what is
    being written, and each write would cost a store that is silent its whole deadline.
    """
    extra: dict[str, Setting] = {} if target.extra_config is None else load_extra_config(target.extra_config)
    resolved = resolve_store(target.backend, extra)
    if all(setting.name != _BREAKER for setting in resolved.settings):
        resolved = replace(resolved, middleware=replace(resolved.middleware, breaker_failures=_BREAKER_FAILURES))
    return resolved.open()


def check_answers(store: ObjectStore, namespace: Namespace) -> None:
    """Return once *store* has said something about *namespace*, whatever it is.

    Raises:
        StoreError: it has not, within its own deadline or 10 s.
    """
    bounded = store if store.capabilities.keeps_deadline else GuardLayer(store, _ANSWER_S)
    # That what is stored is damaged is an answer too.
    with within(_ANSWER_S), suppress(CorruptObject, RangeError):
        # A read says more than a lookup: S3 does not tell by the latter that there is no such bucket.
        bounded.read_into(descriptor_key(namespace.digest), 0, [bytearray(1)])


def _own_layout(shape: KVShape, shard: Shard) -> ShardLayout:
    """Return the layout of a shard that is stored as if it were a model of its own, one object for each page."""
    layers, heads = len(shard.layers), len(shard.heads)
    own = replace(shape, num_layers=layers, num_kv_heads=heads)
    return ShardLayout(own, Grid(layers, heads), Shard(range(layers), range(heads)))


def _rank_name(topology: Topology, shape: KVShape, tp_rank: int, pp_rank: int) -> str:
    """Return the name of what the rank holds: that of the first rank that holds the same."""
    first = tp_rank - tp_rank % topology.copies(shape)
    return f"tp{first}of{topology.tp}-pp{pp_rank}of{topology.pp}"
