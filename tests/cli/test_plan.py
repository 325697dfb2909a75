"""`hicache plan`: the grid of a fleet, what it costs, and who stands in its way."""

from __future__ import annotations

import pytest

from tests.cli.running import Hicache

SEED = ("--layers", "60", "--kv-heads", "8")


def test_the_seed_example_prints_grid_objects_and_sizes(hicache: Hicache) -> None:
    ended = hicache("plan", *SEED, "--fleet", "tp4pp2,tp2pp1")

    assert ended.status == 0
    assert ended.err == ""
    lines = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in ended.out.splitlines()}
    assert lines["grid"] == "30 layers x 2 KV heads"
    assert lines["objects per page"] == "8"
    assert "1966360 bytes" in lines["object size"]
    rows = [line.split() for line in ended.out.splitlines() if line.startswith("tp")]
    assert rows == [["tp4pp2", "1", "yes", "whole", "objects"], ["tp2pp1", "4", "yes", "whole", "objects"]]
    assert "flags: --hicache-storage-head-partition 2 --hicache-storage-layer-partition 30" in ended.out


def test_the_seed_example_as_json(hicache: Hicache) -> None:
    ended = hicache("plan", *SEED, "--fleet", "tp4pp2,tp2pp1", "--json")

    document = ended.json()
    assert ended.status == 0
    assert document["layer_partition"] == 30
    assert document["head_partition"] == 2
    assert document["objects_per_page"] == 8
    assert document["object_nbytes"] == 30 * 2 * 64 * 2 * 128 * 2 + 30 * 8 + 40
    assert document["page_nbytes"] == 60 * 2 * 64 * 8 * 128 * 2
    assert document["shareable"] is True
    assert members(document) == {
        "tp4pp2": {"objects_per_rank": 1, "fewest_objects_per_rank": 1, "can_write": True, "why_not": ""},
        "tp2pp1": {"objects_per_rank": 4, "fewest_objects_per_rank": 4, "can_write": True, "why_not": ""},
    }


def members(document: dict[str, object]) -> dict[str, dict[str, object]]:
    listed = document["members"]
    assert isinstance(listed, list)
    names = ("objects_per_rank", "fewest_objects_per_rank", "can_write", "why_not")
    return {member["topology"]: {name: member[name] for name in names} for member in listed}


def test_what_would_make_the_grid_coarser_is_said(hicache: Hicache) -> None:
    ended = hicache("plan", *SEED, "--fleet", "tp4pp2,tp2pp1")

    assert "without tp4pp2 as a writer the grid would be 60 x 4: 2 objects a page instead of 8" in ended.out


def test_mla_has_no_head_axis(hicache: Hicache) -> None:
    ended = hicache("plan", "--layers", "61", "--mla", "--fleet", "tp8pp1,tp1pp4", "--json")

    document = ended.json()
    assert ended.status == 0
    assert document["head_partition"] == 0
    assert document["layer_partition"] == 15
    assert document["page_nbytes"] == 61 * 64 * 576 * 2
    assert "MLA, no head axis" in hicache("plan", "--layers", "61", "--mla", "--fleet", "tp8pp1,tp1pp4").out


def test_readers_never_make_the_grid_finer(hicache: Hicache) -> None:
    alone = hicache("plan", *SEED, "--fleet", "tp2pp1", "--json").json()

    ended = hicache("plan", *SEED, "--fleet", "tp2pp1", "--readers", "tp8pp4", "--json")

    document = ended.json()
    assert ended.status == 0
    assert document["shareable"] is True
    assert [document[name] for name in ("layer_partition", "head_partition")] == [
        alone[name] for name in ("layer_partition", "head_partition")
    ]
    table = hicache("plan", *SEED, "--fleet", "tp2pp1", "--readers", "tp8pp4").out
    assert ["tp8pp4", "1", "reader", "only", "ranges", "of", "objects"] in [line.split() for line in table.splitlines()]


def test_ragged_stages_set_the_grid(hicache: Hicache) -> None:
    document = hicache("plan", *SEED, "--fleet", "tp4pp2:32+28,tp2pp1", "--json").json()

    assert document["layer_partition"] == 32
    assert members(document)["tp4pp2:32+28"]["can_write"] is True
    assert document["objects_per_page"] == 2 * 4


def test_shape_flags_change_the_size(hicache: Hicache) -> None:
    flags = ("--head-dim", "64", "--kv-cache-dtype", "fp8_e4m3", "--page-size", "32", "--json")

    document = hicache("plan", *SEED, "--fleet", "tp1pp1", *flags).json()

    assert document["page_nbytes"] == 60 * 2 * 32 * 8 * 64


@pytest.mark.parametrize("as_json", [False, True])
def test_a_fleet_that_cannot_share_names_the_topology_both_numbers_and_the_way_out(
    hicache: Hicache, as_json: bool
) -> None:
    fixed = ("--hicache-storage-layer-partition", "40", *(["--json"] if as_json else []))

    ended = hicache("plan", *SEED, "--fleet", "tp4pp2,tp2pp1", *fixed)

    assert ended.status == 2
    assert "tp4pp2 cannot write this grid: layers [0, 30) are not on a grid of 40 layers" in ended.out
    assert "It would take chunks of 30 x 2" in ended.out
    assert "--readers" in ended.out
    if as_json:
        document = ended.json()
        assert document["shareable"] is False
        assert members(document)["tp4pp2"]["why_not"] == "layers [0, 30) are not on a grid of 40 layers"
        assert members(document)["tp2pp1"]["can_write"] is True


def test_ranks_that_touch_different_numbers_of_objects_show_the_fewest_and_the_most(hicache: Hicache) -> None:
    flags = ("--fleet", "tp4pp2", "--hicache-storage-layer-partition", "40")

    member = members(hicache("plan", *SEED, *flags, "--json").json())["tp4pp2"]

    assert (member["fewest_objects_per_rank"], member["objects_per_rank"]) == (1, 2)
    assert ["tp4pp2", "1-2", "NO"] in [line.split()[:3] for line in hicache("plan", *SEED, *flags).out.splitlines()]


def test_a_fixed_head_partition_that_is_too_coarse_names_both_numbers(hicache: Hicache) -> None:
    ended = hicache("plan", *SEED, "--fleet", "tp4pp2", "--hicache-storage-head-partition", "4")

    assert ended.status == 2
    assert "heads [0, 2) (2 per rank) are not on a grid of 4 heads" in ended.out


@pytest.mark.parametrize(
    ("name", "reason", "fitting"),
    [
        ("tp3pp1", "tp3pp1 cannot divide 8 KV heads over 3 TP ranks", ["tp2pp1", "tp4pp1"]),
        ("tp4pp2:31+31", "tp4pp2:31+31 names 62 layers, the model has 60", ["tp4pp2"]),
        ("tp1pp61", "tp1pp61 has 61 stages, the model has 60 layers", ["tp1pp60"]),
    ],
)
def test_a_topology_that_cannot_run_is_named_with_what_would_help(
    hicache: Hicache, name: str, reason: str, fitting: list[str]
) -> None:
    ended = hicache("plan", *SEED, "--fleet", f"tp4pp2,{name},tp2pp1")

    assert (ended.status, ended.err) == (2, "")
    assert f"no grid: {name} cannot run this model\n\n{reason}\n" in ended.out
    assert [line.split()[0] for line in ended.out.splitlines() if line.startswith("  ")] == fitting
    assert ended.out.endswith(
        f"Without {name}: the rest of the fleet has a grid of 30 layers x 2 KV heads: 8 objects a page.\n"
    )


def test_a_topology_that_cannot_run_is_named_in_the_document(hicache: Hicache) -> None:
    ended = hicache("plan", *SEED, "--fleet", "tp4pp2,tp3pp1", "--json")

    document = ended.json()
    assert (ended.status, ended.err) == (2, "")
    assert document["shareable"] is False
    assert [document[name] for name in ("layer_partition", "head_partition", "objects_per_page")] == [None] * 3
    assert isinstance(document["obstacles"], list)
    (obstacle,) = document["obstacles"]
    assert (obstacle["topology"], obstacle["reason"]) == (
        "tp3pp1",
        "tp3pp1 cannot divide 8 KV heads over 3 TP ranks",
    )
    assert [sentence.split()[0] for sentence in obstacle["advice"]] == ["tp2pp1", "tp4pp1"]
    assert document["advice"] == ["Without tp3pp1: tp4pp2 has a grid of 30 layers x 2 KV heads: 8 objects a page."]


def test_every_document_of_a_plan_has_the_same_fields(hicache: Hicache) -> None:
    planned = hicache("plan", *SEED, "--fleet", "tp4pp2", "--json").json()
    refused = hicache("plan", *SEED, "--fleet", "tp3pp1", "--json").json()

    assert planned.keys() == refused.keys()
    assert planned["obstacles"] == []


@pytest.mark.parametrize(
    ("model", "fleet", "sentence", "copies", "writing"),
    [
        (SEED, "tp4pp2", None, 1, [0, 1, 2, 3]),
        (
            SEED,
            "tp16pp2",
            "hold each KV head, one of them writes: TP ranks 0, 2, 4, 6, 8, 10, 12, 14; the other 8 only read",
            2,
            [0, 2, 4, 6, 8, 10, 12, 14],
        ),
        (
            ("--layers", "61", "--mla"),
            "tp8pp1",
            "tp8pp1: 8 TP ranks of a stage hold the same rows, one of them writes: TP rank 0; the other 7 only read",
            8,
            [0],
        ),
    ],
)
def test_who_writes_where_ranks_hold_copies_is_said(
    hicache: Hicache, model: tuple[str, ...], fleet: str, sentence: str | None, copies: int, writing: list[int]
) -> None:
    table = hicache("plan", *model, "--fleet", fleet)
    document = hicache("plan", *model, "--fleet", fleet, "--json").json()

    assert ("TP ranks of a stage" in table.out) is (sentence is not None)
    assert (sentence or "") in table.out
    assert isinstance(document["members"], list)
    (member,) = document["members"]
    assert (member["copies"], member["writing_tp_ranks"]) == (copies, writing)


def test_readers_that_hold_copies_write_none(hicache: Hicache) -> None:
    ended = hicache("plan", *SEED, "--fleet", "tp2pp1", "--readers", "tp16pp1")

    assert "tp16pp1: 2 TP ranks of a stage hold each KV head; none of them writes" in ended.out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((*SEED, "--fleet", "tp4pp"), "topology 'tp4pp': expected tp<N>pp<M>"),
        ((*SEED, "--fleet", "4x2"), "topology '4x2': expected tp<N>pp<M>"),
        ((*SEED, "--fleet", "tp0pp1"), "tp = 0 and pp = 1: both are at least 1"),
        ((*SEED, "--fleet", "tp4pp2:31"), "needs 2 positive numbers"),
        ((*SEED, "--fleet", ", ,"), "--fleet ', ,': expected comma-separated topologies"),
        ((*SEED, "--fleet", "tp1pp1", "--readers", "x"), "topology 'x': expected"),
        (
            (*SEED, "--fleet", "tp1pp1", "--hicache-storage-head-partition", "3"),
            "does not divide the model's 8 KV heads",
        ),
        ((*SEED, "--fleet", "tp1pp1", "--hicache-storage-layer-partition", "61"), "61 is not in [1, 60]"),
        ((*SEED, "--fleet", "tp1pp1", "--kv-cache-dtype", "int3"), "KV dtype 'int3' is not known"),
        ((*SEED, "--fleet", "tp1pp1", "--head-dim", "0"), "head_dim"),
        ((*SEED, "--fleet", "tp1pp1", "--page-size", "0"), "page_tokens"),
        (("--layers", "60", "--mla", "--head-dim", "0", "--fleet", "tp1pp1"), "head_dim"),
        (("--layers", "0", "--kv-heads", "8", "--fleet", "tp1pp1"), "num_layers"),
        (("--layers", "60", "--kv-heads", "0", "--fleet", "tp1pp1"), "--kv-heads 0: expected at least 1"),
        (("--layers", "60", "--kv-heads", "8", "--mla", "--fleet", "tp1pp1"), "not allowed with argument"),
        (("--layers", "60", "--fleet", "tp1pp1"), "one of the arguments --kv-heads --mla is required"),
        (("--layers", "60", "--kv-heads", "8"), "the following arguments are required: --fleet"),
        (("--layers", "many", "--kv-heads", "8", "--fleet", "tp1pp1"), "invalid int value: 'many'"),
    ],
)
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_what_cannot_be_planned_is_a_usage_error_on_stderr(
    hicache: Hicache, arguments: tuple[str, ...], why: str, as_json: tuple[str, ...]
) -> None:
    ended = hicache("plan", *arguments, *as_json)

    assert ended.status == 2
    assert why in ended.err
    assert ended.out == ""
