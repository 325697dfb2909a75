"""What one rank owns of a model: layers by pipeline stage, heads and MLP columns by tensor-parallel rank."""

from __future__ import annotations

from dataclasses import dataclass

from hicache_storage.engine_integration.reference_engine.model_config import ModelConfig
from hicache_storage.errors import ConfigError
from hicache_storage.layout import Topology


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's share, in global half-open ranges.

    Attributes:
        layers: decoder layers of the pipeline stage.
        heads: query heads.
        kv_heads: KV heads that these query heads attend with; shared with neighbours when there
            are more tensor-parallel ranks than KV heads.
        columns: columns of the MLP's inner width.
        first: the stage embeds tokens.
        last: the stage turns hidden states into logits.
    """

    layers: range
    heads: range
    kv_heads: range
    columns: range
    first: bool
    last: bool


def part_of(config: ModelConfig, topology: Topology, *, tp_rank: int = 0, pp_rank: int = 0) -> Part:
    """Return what the rank owns; its KV is the shard that the layout gives it.

    Raises:
        ConfigError: query heads or MLP columns cannot be split evenly.
        LayoutError: layers or KV heads cannot be split.
    """
    shard = topology.shard(config.kv_shape(dtype="float32", page_tokens=1), tp_rank=tp_rank, pp_rank=pp_rank)
    return Part(
        layers=shard.layers,
        heads=_share(config.num_heads, topology, tp_rank, "query heads"),
        kv_heads=shard.heads,
        columns=_share(config.mlp_size, topology, tp_rank, "MLP columns"),
        first=pp_rank == 0,
        last=pp_rank == topology.pp - 1,
    )


def _share(total: int, topology: Topology, tp_rank: int, what: str) -> range:
    if total % topology.tp:
        raise ConfigError(f"{topology.name} cannot divide {total} {what} over {topology.tp} TP ranks")
    each = total // topology.tp
    return range(tp_rank * each, (tp_rank + 1) * each)
