"""What keeps a fleet from sharing and what would help, computed; and which of the ranks that hold copies write."""

from __future__ import annotations

import pytest

from hicache_storage.errors import LayoutError
from hicache_storage.layout import KVShape, Topology, advise_without, find_obstacles, plan_grid

EIGHT_HEADS = KVShape.mha(num_layers=60, num_kv_heads=8, head_dim=128, dtype="bfloat16", page_tokens=64)
LATENT = KVShape.mla(num_layers=61, latent_dim=576, dtype="bfloat16", page_tokens=64)


def topologies(*names: str) -> list[Topology]:
    return [Topology.parse(name) for name in names]


def first_words(sentences: tuple[str, ...]) -> list[str]:
    return [sentence.split()[0] for sentence in sentences]


# -- topologies that cannot run the model -------------------------------------------------------


def test_a_fleet_that_can_run_the_model_has_no_obstacle() -> None:
    assert find_obstacles(EIGHT_HEADS, topologies("tp4pp2", "tp16pp60"), topologies("tp1pp7")) == []


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("tp3pp1", ["tp2pp1", "tp4pp1"]),
        ("tp5pp2", ["tp4pp2", "tp8pp2"]),
        ("tp7pp2:31+29", ["tp4pp2:31+29", "tp8pp2:31+29"]),
        ("tp12pp1", ["tp8pp1", "tp16pp1"]),
        ("tp4pp61", ["tp4pp60"]),
        ("tp4pp2:31+31", ["tp4pp2"]),
        ("tp9pp99", ["tp8pp60", "tp16pp60"]),
    ],
)
def test_the_nearest_sizes_that_fit_are_named(name: str, nearest: list[str]) -> None:
    (obstacle,) = find_obstacles(EIGHT_HEADS, topologies("tp2pp1", name))

    assert obstacle.topology.name == name
    assert first_words(obstacle.advice) == nearest
    assert find_obstacles(EIGHT_HEADS, topologies(*nearest)) == []


def test_the_reason_has_both_numbers_of_heads_and_of_layers() -> None:
    (obstacle,) = find_obstacles(EIGHT_HEADS, topologies("tp3pp61"))

    assert obstacle.reason == (
        "tp3pp61 cannot divide 8 KV heads over 3 TP ranks; tp3pp61 has 61 stages, the model has 60 layers"
    )


@pytest.mark.parametrize("name", ["tp3pp1", "tp1pp61", "tp4pp2:31+31", "tp9pp99"])
def test_an_obstacle_is_what_cannot_be_planned(name: str) -> None:
    with pytest.raises(LayoutError):
        plan_grid(EIGHT_HEADS, topologies("tp2pp1", name))


def test_each_size_that_fits_comes_with_the_grid_that_the_fleet_then_has() -> None:
    (obstacle,) = find_obstacles(EIGHT_HEADS, topologies("tp4pp2", "tp3pp1"))

    for sentence, name in zip(obstacle.advice, ("tp2pp1", "tp4pp1"), strict=True):
        plan = plan_grid(EIGHT_HEADS, topologies("tp4pp2", name))
        assert f"the fleet has a grid of {plan.grid.layer_partition} layers x {plan.grid.head_partition} KV" in sentence
        assert f"{plan.objects_per_page} objects a page" in sentence


def test_the_rest_of_the_fleet_has_the_grid_of_its_own_plan() -> None:
    fleet = topologies("tp4pp2", "tp3pp1", "tp2pp1", "tp1pp61")

    advice = advise_without(EIGHT_HEADS, fleet, find_obstacles(EIGHT_HEADS, fleet))

    assert advice == (
        "Without tp3pp1, tp1pp61: the rest of the fleet has a grid of 30 layers x 2 KV heads: 8 objects a page."
    )


def test_a_fleet_of_nothing_but_obstacles_has_no_rest() -> None:
    fleet = topologies("tp3pp1")

    assert "no topology is left" in advise_without(EIGHT_HEADS, fleet, find_obstacles(EIGHT_HEADS, fleet))


def test_a_reader_that_cannot_run_is_an_obstacle_and_changes_no_grid() -> None:
    (obstacle,) = find_obstacles(EIGHT_HEADS, topologies("tp4pp2"), topologies("tp3pp1"))

    assert first_words(obstacle.advice) == ["tp2pp1", "tp4pp1"]
    assert not any("grid" in sentence for sentence in obstacle.advice)


def test_latent_rows_fit_any_tp_size() -> None:
    (obstacle,) = find_obstacles(LATENT, topologies("tp7pp62", "tp3pp1"))

    assert first_words(obstacle.advice) == ["tp7pp61"]


def test_an_obstacle_named_twice_is_said_once() -> None:
    assert len(find_obstacles(EIGHT_HEADS, topologies("tp3pp1", "tp3pp1"), topologies("tp3pp1"))) == 1


# -- a grid that somebody fixed ------------------------------------------------------------------


def test_a_fixed_grid_makes_an_obstacle_of_the_member_that_cannot_write_it() -> None:
    plan = plan_grid(EIGHT_HEADS, topologies("tp4pp2", "tp8pp1"), head_partition=2)

    (obstacle,) = plan.obstacles
    assert obstacle.topology.name == "tp8pp1"
    assert obstacle.reason == "heads [0, 1) (1 per rank) are not on a grid of 2 heads"
    assert not plan.shareable


# -- copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "name", "copies", "writing"),
    [
        (EIGHT_HEADS, "tp4pp2", 1, [0, 1, 2, 3]),
        (EIGHT_HEADS, "tp8pp1", 1, list(range(8))),
        (EIGHT_HEADS, "tp16pp2", 2, [0, 2, 4, 6, 8, 10, 12, 14]),
        (LATENT, "tp8pp1", 8, [0]),
        (LATENT, "tp1pp4", 1, [0]),
    ],
)
def test_one_rank_of_those_that_hold_the_same_bytes_writes(
    shape: KVShape, name: str, copies: int, writing: list[int]
) -> None:
    (member,) = plan_grid(shape, topologies(name)).members

    assert member.copies == copies
    assert list(member.writing_tp_ranks) == writing
    assert [tp for tp in range(member.topology.tp) if member.topology.is_writer(shape, tp_rank=tp)] == writing


def test_a_reader_elects_no_writer() -> None:
    plan = plan_grid(EIGHT_HEADS, topologies("tp8pp1"), readers=topologies("tp16pp1"))

    assert (plan.members[1].copies, len(plan.members[1].writing_tp_ranks)) == (2, 0)


def test_a_member_that_cannot_write_elects_no_writer() -> None:
    plan = plan_grid(EIGHT_HEADS, topologies("tp16pp1"), head_partition=2)

    assert len(plan.members[0].writing_tp_ranks) == 0


def test_a_hundred_thousand_copies_cost_no_more_than_one() -> None:
    plan = plan_grid(LATENT, topologies("tp99999pp61"))

    assert plan.members[0].copies == 99999
    assert plan.objects_per_page == 61
