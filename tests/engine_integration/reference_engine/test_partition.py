from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hicache_storage.engine_integration.reference_engine.model_config import ModelConfig, read_model_config
from hicache_storage.engine_integration.reference_engine.partition import part_of
from hicache_storage.errors import ConfigError, LayoutError
from hicache_storage.layout import Topology


@pytest.fixture
def config(tiny_model: Path) -> ModelConfig:
    return read_model_config(tiny_model)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("pp", [1, 2, 3, 4])
def test_every_query_head_and_column_of_every_layer_has_one_owner(config: ModelConfig, tp: int, pp: int) -> None:
    topology = Topology(tp=tp, pp=pp)
    parts = [part_of(config, topology, tp_rank=tp_rank, pp_rank=pp_rank) for tp_rank, pp_rank in topology.ranks()]

    heads = Counter((layer, head) for part in parts for layer in part.layers for head in part.heads)
    columns = Counter((layer, column) for part in parts for layer in part.layers for column in part.columns)

    assert heads == Counter((layer, head) for layer in range(4) for head in range(8))
    assert columns == Counter((layer, column) for layer in range(4) for column in range(96))


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_a_rank_holds_exactly_the_kv_heads_its_query_heads_need(config: ModelConfig, tp: int) -> None:
    for tp_rank in range(tp):
        part = part_of(config, Topology(tp=tp), tp_rank=tp_rank)

        assert {head // 2 for head in part.heads} == set(part.kv_heads)


def test_only_the_ends_of_the_pipeline_are_first_and_last(config: ModelConfig) -> None:
    parts = [part_of(config, Topology(pp=3), pp_rank=rank) for rank in range(3)]

    assert [(part.first, part.last) for part in parts] == [(True, False), (False, False), (False, True)]


def test_what_cannot_be_divided_is_named_with_both_numbers(config: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="8 query heads over 16 TP ranks"):
        part_of(config, Topology(tp=16))
    with pytest.raises(LayoutError, match="4 KV heads over 3 TP ranks"):
        part_of(config, Topology(tp=3))
    with pytest.raises(LayoutError, match="5 stages, the model has 4 layers"):
        part_of(config, Topology(pp=5))
