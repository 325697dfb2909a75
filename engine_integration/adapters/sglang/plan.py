"""From a rank's host pools to objects: which namespace, which layout, and who writes. Integers in, data out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from hicache_storage.engine_integration.adapters.sglang.facts import EngineModel, PoolFacts, RankFacts, needed
from hicache_storage.engine_integration.adapters.sglang.options import AdapterOptions
from hicache_storage.errors import ConfigError, LayoutError
from hicache_storage.layout import (
    Grid,
    KVShape,
    Namespace,
    Shard,
    ShardLayout,
    Topology,
    canonical_dtype,
    coarsest_grid,
    plan_grid,
)

_BYTES = {"uint8", "int8"}


@dataclass(frozen=True, slots=True)
class PartPlan:
    """A part of a host pool's pages that is stored on its own.

    Attributes:
        layout: this rank's share of a page of the part.
        pool_layers: the layers of the pool that the part has.
        writes: this rank is the one that writes its share.
    """

    namespace: Namespace
    layout: ShardLayout
    pool_layers: range
    writes: bool


class PartPlanner:
    """Plans for one rank.

    Args:
        model_name: the name that the engine serves the model under.
    """

    def __init__(self, rank: RankFacts, options: AdapterOptions, model: EngineModel, model_name: str | None) -> None:
        self._rank = rank
        self._options = options
        self._model = model
        self._model_id = needed(options.model_id or model_name, "model_id", "the model has no name")
        self._is_private = options.key_scheme == "rank-suffix"

    def anchor(self, pool: PoolFacts) -> list[PartPlan]:
        """Return the parts of the pool of the model's own KV: its layers and, if there are, those of packed drafts.

        Raises:
            ConfigError: something that keys depend on is not known; the message says which option gives it.
            LayoutError: the rank's share of a page is not made of whole objects of the grid.
        """
        target, draft = range(pool.target_layers), range(pool.target_layers, pool.layers)
        dtype = self._logical_dtype(pool)
        if self._is_private:
            own = self._own_layout(pool, target, dtype)
            parts = [self._part(self._model_id, self._private_name(pool), own, target)]
        else:
            layout, is_elected = self._shared_layout(pool, dtype)
            parts = [replace(self._part(self._model_id, None, layout, target), writes=is_elected)]
        if draft:
            parts.append(replace(self._packed_draft(pool, draft, parts[0]), writes=parts[0].writes))
        if self._options.read_only:
            parts = [replace(part, writes=False) for part in parts]
        for part in parts:
            _check_writer(part)
        return parts

    def companion(self, name: str, pool: PoolFacts) -> PartPlan:
        """Return the one part of a side pool of K and V or of latent rows, such as a draft's or a sliding window's.

        Ranks of other TP sizes share it unless heads may be replicated; pipeline stages keep their own.

        Raises:
            ConfigError: as `anchor`.
        """
        model_id = self._draft_id() if name.startswith("draft") else self._model_id
        layers, dtype = range(pool.layers), self._logical_dtype(pool)
        partition = 0 if pool.is_mla else self._side_partition(pool)
        # A single head a rank may be one of many or a copy of few, and nothing here says which.
        may_be_copies = pool.heads == 1 and self._rank.tp_size > 1
        if self._is_private or may_be_copies or (partition and pool.heads % partition):
            layout = self._own_layout(pool, layers, dtype)
            return self._part(model_id, f"{name}-{self._private_name(pool)}", layout, layers)
        total, first = pool.heads * self._rank.tp_size, pool.heads * self._rank.tp_rank
        shape = _shape(pool, len(layers), total, dtype)
        layout = ShardLayout(shape, Grid(len(layers), partition), Shard(layers, range(first, first + pool.heads)))
        return self._part(model_id, self._of_stage(name), layout, layers)

    def opaque(self, name: str, form: str, page_nbytes: int, *, is_sharded: bool) -> PartPlan:
        """Return the one part of a pool whose pages are nothing but bytes here.

        Args:
            form: what makes two such pages of one size differ.
            is_sharded: each TP rank holds another share; False where all hold the same.
        """
        row = gcd(page_nbytes, _OPAQUE_ROW_NBYTES)
        shape = KVShape.mla(num_layers=1, latent_dim=row, dtype="uint8", page_tokens=page_nbytes // row)
        layout = ShardLayout(shape, Grid(1, 0), Shard(range(1), range(0)))
        is_private = is_sharded or self._is_private
        place = f"{name}-{self._rank.name(is_sharded=is_sharded)}" if is_private else self._of_stage(name)
        model_id = self._draft_id() if name.startswith("draft") else self._model_id
        return self._part(model_id, f"{place}-{form}-{page_nbytes}", layout, range(1))

    def _part(self, model_id: str, component: str | None, layout: ShardLayout, pool_layers: range) -> PartPlan:
        variant = replace(self._options.variant, component=component)
        namespace = Namespace.of(model_id=model_id, shape=layout.shape, grid=layout.grid, variant=variant)
        return PartPlan(namespace, layout, pool_layers, writes=not self._options.read_only)

    def _private_name(self, pool: PoolFacts) -> str:
        return self._rank.name(is_sharded=not pool.is_mla)

    def _of_stage(self, name: str) -> str:
        return name if self._rank.pp_size == 1 else f"{name}-{self._rank.stage}"

    def _draft_id(self) -> str:
        """Return the name of a draft's KV, which depends on the target model as well."""
        draft = self._options.draft_model_id or self._model.draft_model()
        return f"{self._model_id} + {draft}" if draft else self._model_id

    def _logical_dtype(self, pool: PoolFacts) -> str:
        """Return the dtype that the rows mean; SGLang keeps fp8 as bytes."""
        if pool.dtype not in _BYTES:
            return canonical_dtype(pool.dtype)
        asked = self._options.kv_dtype or self._model.kv_dtype()
        return canonical_dtype(needed(asked, "kv_dtype", f"the host pool keeps its rows as {pool.dtype}"))

    def _own_layout(self, pool: PoolFacts, layers: range, dtype: str) -> ShardLayout:
        """Return a layout for layers that are stored as if they were a model, one object for each page."""
        shape = _shape(pool, len(layers), pool.heads, dtype)
        return ShardLayout(shape, Grid(len(layers), pool.heads), Shard(range(len(layers)), range(pool.heads)))

    def _packed_draft(self, pool: PoolFacts, layers: range, target: PartPlan) -> PartPlan:
        """Return the draft layers that share the target's slots: a model of their own, cut as the target's heads are."""
        if self._is_private:
            layout = self._own_layout(pool, layers, target.namespace.dtype)
            return self._part(self._draft_id(), f"draft-packed-{self._private_name(pool)}", layout, layers)
        shape = replace(target.layout.shape, num_layers=len(layers))
        grid = Grid(len(layers), target.layout.grid.head_partition)
        layout = ShardLayout(shape, grid, Shard(range(len(layers)), target.layout.shard.heads))
        return self._part(self._draft_id(), self._of_stage("draft-packed"), layout, layers)

    # -- the model's own layers, shared by all topologies ------------------------------------

    def _shared_layout(self, pool: PoolFacts, dtype: str) -> tuple[ShardLayout, bool]:
        """Return the rank's share of the model's pages, and whether it is the elected writer of that share."""
        rank = self._rank
        shape = _shape(pool, self._num_layers(pool), 0 if pool.is_mla else self._total_kv_heads(pool), dtype)
        ranks = Topology(rank.tp_size, 1)
        layers = range(pool.start_layer, pool.start_layer + pool.target_layers)
        heads = ranks.heads(shape, rank.tp_rank)
        if len(heads) != pool.heads:
            raise ConfigError(
                f"a model of {shape.num_kv_heads} KV heads has {len(heads)} on each of {rank.tp_size} TP ranks, and "
                f"the host pool has {pool.heads}: set total_kv_heads to the model's"
            )
        self._check_stage(shape, layers)
        layout = ShardLayout(shape, self._grid(shape, layers), Shard(layers, heads))
        return layout, ranks.is_writer(shape, tp_rank=rank.tp_rank)

    def _check_stage(self, shape: KVShape, layers: range) -> None:
        """Refuse a pool that does not number its layers as the model does: stages would overwrite each other."""
        rank, last = self._rank, self._rank.pp_size - 1
        place = f"stage {rank.pp_rank} of {rank.pp_size}"
        hint = "SGLang numbers the layers of such a model otherwise: set key_scheme to rank-suffix"
        if (rank.pp_rank == 0) != (layers.start == 0):
            raise LayoutError(f"{place} starts at layer {layers.start}; {hint}")
        if (rank.pp_rank == last) != (layers.stop == shape.num_layers):
            numbers = f"[{layers.start}, {layers.stop}) of a model of {shape.num_layers}"
            raise LayoutError(f"{place} has layers {numbers}: set num_layers to the model's, or {hint}")

    def _num_layers(self, pool: PoolFacts) -> int:
        rank, known = self._rank, self._options.num_layers
        if known is None and rank.pp_size == 1:
            return pool.start_layer + pool.target_layers
        reason = f"stage {rank.pp_rank} of {rank.pp_size} does not see how many layers the model has"
        return needed(known or self._model.num_layers(), "num_layers", reason)

    def _total_kv_heads(self, pool: PoolFacts) -> int:
        """Return the model's KV heads. A rank that holds several holds none that another one has too."""
        tp_size, known = self._rank.tp_size, self._options.total_kv_heads
        if known is None and (pool.heads > 1 or tp_size == 1):
            return pool.heads * tp_size
        reason = f"one KV head on each of {tp_size} TP ranks: it is not known whether ranks share heads"
        return needed(known or self._model.total_kv_heads(), "total_kv_heads", reason)

    def _grid(self, shape: KVShape, layers: range) -> Grid:
        """Return the grid as configured, else the coarsest of the named topologies, else that of this one alone."""
        options, mine = self._options, Topology(self._rank.tp_size, self._rank.pp_size)
        head_partition = 0 if shape.is_mla else options.head_partition
        if options.layer_partition is not None and head_partition is not None:
            grid = Grid(options.layer_partition, head_partition)
            grid.check(shape)
            return grid
        is_even = mine.layers(shape, self._rank.pp_rank) == layers
        if options.topologies is None and options.layer_partition is None and not is_even:
            raise ConfigError(
                f"stage {self._rank.pp_rank} has layers [{layers.start}, {layers.stop}), which is no even share of "
                f"{shape.num_layers}: set layer_partition, or topologies with their layers, as in {mine.name}:31+29"
            )
        writers = list(options.topologies or [mine])
        plan = plan_grid(shape, writers, layer_partition=options.layer_partition, head_partition=head_partition or None)
        return plan.grid

    def _side_partition(self, pool: PoolFacts) -> int:
        """Return the heads of an object of a side pool, the same for all that share it."""
        total = pool.heads * self._rank.tp_size
        if self._options.head_partition is not None:
            return gcd(self._options.head_partition, total)
        if self._options.topologies is None:
            return pool.heads
        shape = _shape(pool, pool.layers, total, "uint8")
        return coarsest_grid(shape, [Topology(one.tp, 1) for one in self._options.topologies]).head_partition


_OPAQUE_ROW_NBYTES = 4096


def _shape(pool: PoolFacts, num_layers: int, heads: int, dtype: str) -> KVShape:
    if pool.is_mla:
        return KVShape.mla(num_layers=num_layers, latent_dim=pool.head_dim, dtype=dtype, page_tokens=pool.page_tokens)
    return KVShape.mha(
        num_layers=num_layers,
        num_kv_heads=heads,
        head_dim=pool.head_dim,
        v_head_dim=pool.v_head_dim,
        dtype=dtype,
        page_tokens=pool.page_tokens,
    )


def _check_writer(part: PartPlan) -> None:
    misfit = part.layout.grid.misfit(part.layout.shape, part.layout.shard)
    if part.writes and misfit is not None:
        raise LayoutError(f"{misfit}; this deployment can read what others wrote: set read_only, or a finer grid")
