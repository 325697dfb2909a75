"""Which layers and heads a rank holds."""

from __future__ import annotations

import pytest

from hicache_storage.errors import ConfigError, LayoutError
from hicache_storage.layout import KVShape, Shard, Topology

SIXTY = KVShape.mha(num_layers=60, num_kv_heads=8, head_dim=4, dtype="bfloat16", page_tokens=4)
MLA = KVShape.mla(num_layers=61, latent_dim=576, dtype="bfloat16", page_tokens=4)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("pp", [1, 2, 3, 4, 7, 60])
def test_the_ranks_of_any_topology_hold_the_model_exactly_once(tp: int, pp: int) -> None:
    topology = Topology(tp, pp)

    cells = [
        (layer, head)
        for tp_rank, pp_rank in topology.ranks()
        for layer in topology.layers(SIXTY, pp_rank)
        for head in topology.heads(SIXTY, tp_rank)
    ]

    assert sorted(cells) == [(layer, head) for layer in range(60) for head in range(8)]


@pytest.mark.parametrize(("tp", "replicas"), [(8, 1), (16, 2), (64, 8)])
def test_ranks_that_share_a_head_elect_one_writer(tp: int, replicas: int) -> None:
    topology = Topology(tp, 1)

    writers = [rank for rank in range(tp) if topology.is_writer(SIXTY, tp_rank=rank)]

    assert writers == list(range(0, tp, replicas))
    assert [topology.heads(SIXTY, rank).start for rank in writers] == list(range(8))


def test_one_tp_rank_writes_for_all_under_mla() -> None:
    topology = Topology(4, 1)

    assert [topology.is_writer(MLA, tp_rank=rank) for rank in range(4)] == [True, False, False, False]
    assert not topology.heads(MLA, 3)


def test_remaining_layers_go_to_the_last_stages() -> None:
    assert [len(Topology(1, 4).layers(MLA, rank)) for rank in range(4)] == [15, 15, 15, 16]


def test_named_stage_sizes_are_kept() -> None:
    topology = Topology.parse("tp4pp2:31+29")

    assert [topology.layers(SIXTY, rank) for rank in range(2)] == [range(31), range(31, 60)]
    assert Topology.parse(topology.name) == topology


@pytest.mark.parametrize(
    ("text", "topology"),
    [("tp4pp2", Topology(4, 2)), ("TP2/PP1", Topology(2, 1)), ("tp8", Topology(8, 1)), (" pp3 ", Topology(1, 3))],
)
def test_topology_is_read_as_people_write_it(text: str, topology: Topology) -> None:
    assert Topology.parse(text) == topology


@pytest.mark.parametrize("text", ["", "4x2", "tp", "tp4pp2:31", "tp0pp1", "tp4cp2", "tp4pp2:31+x", "tp-1"])
def test_what_is_no_topology_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(ConfigError):
        Topology.parse(text)


@pytest.mark.parametrize(
    ("name", "numbers"), [("tp3pp1", ("8", "3")), ("tp1pp61", ("61", "60")), ("tp1pp2:31+30", ("61", "60"))]
)
def test_topology_that_cannot_run_the_model_is_refused_with_both_numbers(name: str, numbers: tuple[str, str]) -> None:
    topology = Topology.parse(name)

    with pytest.raises(LayoutError) as refusal:
        [topology.shard(SIXTY, tp_rank=tp_rank, pp_rank=pp_rank) for tp_rank, pp_rank in topology.ranks()]

    assert all(number in str(refusal.value) for number in numbers)


@pytest.mark.parametrize("rank", [-1, 2])
def test_rank_outside_the_topology_is_refused(rank: int) -> None:
    with pytest.raises(LayoutError, match=r"\[0, 2\)"):
        Topology(2, 2).heads(SIXTY, rank)


def test_shard_with_gaps_is_refused() -> None:
    with pytest.raises(LayoutError, match="contiguous"):
        Shard(range(0, 4, 2), range(2))
