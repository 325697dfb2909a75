"""F4: every byte of every page comes from exactly one place, for every pair of topologies."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from hicache_storage.errors import LayoutError
from hicache_storage.layout import (
    Grid,
    KVShape,
    RowCopy,
    ShardLayout,
    Topology,
    coarsest_grid,
    plan_grid,
    plan_reads,
    plan_writes,
)

SIXTY = KVShape.mha(num_layers=60, num_kv_heads=8, head_dim=128, dtype="bfloat16", page_tokens=64)
SMALL = KVShape.mha(num_layers=6, num_kv_heads=4, head_dim=2, dtype="uint8", page_tokens=3)
UNEVEN = KVShape.mha(num_layers=7, num_kv_heads=6, head_dim=3, v_head_dim=2, dtype="uint8", page_tokens=2)
LATENT = KVShape.mla(num_layers=7, latent_dim=5, dtype="uint8", page_tokens=3)
TOPOLOGIES = {
    "mha": (SMALL, [Topology(tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 3, 4, 6)]),
    "uneven": (UNEVEN, [Topology(tp, pp) for tp in (1, 2, 3, 6, 12) for pp in (1, 2, 3, 7)]),
    "mla": (LATENT, [Topology(tp, pp) for tp in (1, 2) for pp in (1, 2, 3, 4, 7)]),
}
WRITERS = [
    pytest.param(shape, writer, topologies, id=f"{name}-{writer.name}")
    for name, (shape, topologies) in TOPOLOGIES.items()
    for writer in topologies
]

Cell = tuple[int, str, int, int, int]


def page_elements(layout: ShardLayout) -> list[Cell]:
    """Name every byte of a page of one-byte elements: (layer, K or V, token, head, dim), by the axes' definition."""
    shape, shard = layout.shape, layout.shard
    if shape.is_mla:
        return [
            (layer, "K", token, 0, dim)
            for layer in shard.layers
            for token in range(shape.page_tokens)
            for dim in range(shape.head_dim)
        ]
    return [
        (layer, part, token, shard.heads.start + group * layout.group_heads + head, dim)
        for group in range(layout.groups)
        for layer in shard.layers
        for part, width in (("K", shape.head_dim), ("V", shape.v_head_dim))
        for token in range(shape.page_tokens)
        for head in range(layout.group_heads)
        for dim in range(width)
    ]


def stored_elements(shape: KVShape, grid: Grid, writer: Topology) -> dict[str, list[Cell]]:
    """Cut every writer's page into its objects; fail if two writers own one object."""
    objects: dict[str, list[Cell]] = {}
    for tp_rank, pp_rank in writer.ranks():
        if not writer.is_writer(shape, tp_rank=tp_rank):
            continue
        layout = ShardLayout(shape, grid, writer.shard(shape, tp_rank=tp_rank, pp_rank=pp_rank))
        page = page_elements(layout)
        assert len(page) == layout.page_nbytes
        for write in plan_writes(layout):
            assert write.chunk.suffix not in objects
            objects[write.chunk.suffix] = page[write.page_offset : write.page_offset + write.nbytes]
    return objects


@pytest.mark.parametrize(("shape", "writer", "readers"), WRITERS)
def test_reader_of_any_topology_gets_each_byte_from_its_place_exactly_once(
    shape: KVShape, writer: Topology, readers: list[Topology]
) -> None:
    grid = coarsest_grid(shape, [writer])
    objects = stored_elements(shape, grid, writer)

    for reader in readers:
        for tp_rank, pp_rank in reader.ranks():
            layout = ShardLayout(shape, grid, reader.shard(shape, tp_rank=tp_rank, pp_rank=pp_rank))
            wanted = page_elements(layout)

            filled = read_elements(layout, objects)

            assert [filled.get(place) for place in range(layout.page_nbytes)] == wanted, reader.name
            assert len(filled) == len(wanted)


def read_elements(layout: ShardLayout, objects: dict[str, list[Cell]]) -> dict[int, Cell]:
    """Carry out a rank's reads on named bytes; fail if one place of the page is filled twice."""
    filled: dict[int, Cell] = {}
    for read in plan_reads(layout):
        body = objects[read.chunk.suffix]
        assert len(body) == read.payload_nbytes
        assert read.offset % read.block_nbytes == 0
        got = body[read.offset : read.offset + read.nbytes]
        for place, element in _placed(read.copies, read.page_offset, got):
            assert place not in filled
            filled[place] = element
    return filled


def _placed(copies: tuple[RowCopy, ...], page_offset: int, got: list[Cell]) -> Iterator[tuple[int, Cell]]:
    """Yield where in the page each byte of a read range ends up."""
    if not copies:
        yield from enumerate(got, page_offset)
        return
    for copy in copies:
        for row in range(copy.rows):
            for byte in range(copy.row_nbytes):
                src = copy.src_offset + row * copy.src_stride + byte
                yield copy.dst_offset + row * copy.row_nbytes + byte, got[src]


@pytest.mark.parametrize(("shape", "topologies"), list(TOPOLOGIES.values()), ids=list(TOPOLOGIES))
def test_writers_of_any_topology_fill_the_grid_exactly_once(shape: KVShape, topologies: list[Topology]) -> None:
    for writer in topologies:
        grid = coarsest_grid(shape, [writer])

        objects = stored_elements(shape, grid, writer)

        assert objects.keys() == {chunk.suffix for chunk in grid.chunks(shape)}
        counts = Counter(itertools.chain.from_iterable(objects.values()))
        assert set(counts.values()) == {1}
        assert len(counts) == shape.page_nbytes


# field_faults.md: objects per page and per rank; "refuse" is what a writer gets.
TABLE = {
    (30, 2): {"tp1pp1": 8, "tp2pp1": 4, "tp4pp1": 2, "tp4pp2": 1},
    (15, 1): {"tp1pp1": 32, "tp2pp1": 16, "tp4pp1": 8, "tp4pp2": 4, "tp8pp1": 4, "tp8pp4": 1, "tp1pp4": 8},
}
NAMES = ["tp1pp1", "tp2pp1", "tp4pp1", "tp4pp2", "tp8pp1", "tp8pp4", "tp1pp3", "tp1pp4"]


@pytest.mark.parametrize(("grid", "name"), list(itertools.product(TABLE, NAMES)))
def test_writers_own_the_objects_of_the_published_table_or_are_refused(grid: tuple[int, int], name: str) -> None:
    topology = Topology.parse(name)
    layouts = [
        ShardLayout(SIXTY, Grid(*grid), topology.shard(SIXTY, tp_rank=tp_rank, pp_rank=pp_rank))
        for tp_rank, pp_rank in topology.ranks()
    ]

    if name in TABLE[grid]:
        assert {len(plan_writes(layout)) for layout in layouts} == {TABLE[grid][name]}
    else:
        with pytest.raises(LayoutError, match=rf"grid of ({grid[0]} layers|{grid[1]} heads)"):
            plan_writes(layouts[0])


def test_published_fleet_shares_eight_objects() -> None:
    plan = plan_grid(SIXTY, [Topology(4, 2), Topology(2, 1)])

    assert plan.grid == Grid(30, 2)
    assert plan.objects_per_page == 8
    assert [member.objects_per_rank for member in plan.members] == [(1, 1), (4, 4)]
    assert plan.shareable


def test_reader_never_makes_the_grid_finer() -> None:
    plan = plan_grid(SIXTY, [Topology(4, 2)], readers=[Topology(8, 4)])

    assert plan.grid == Grid(30, 2)
    assert plan.shareable
    assert not plan.members[1].whole_objects


def test_fixed_grid_names_the_topology_that_stands_in_the_way() -> None:
    plan = plan_grid(SIXTY, [Topology(4, 2), Topology(8, 1)], head_partition=2)

    assert not plan.shareable
    assert any("tp8pp1" in sentence and "grid of 2 heads" in sentence for sentence in plan.advice)


def test_advice_names_the_topology_that_makes_the_grid_fine() -> None:
    plan = plan_grid(SIXTY, [Topology(4, 2), Topology(2, 1), Topology.parse("tp2pp2:31+29")])

    assert plan.grid == Grid(1, 2)
    assert any("tp2pp2:31+29" in sentence and "8 objects a page instead of 240" in sentence for sentence in plan.advice)


def test_last_layer_chunk_may_be_short() -> None:
    grid = coarsest_grid(UNEVEN, [Topology.parse("tp1pp3:3+3+1")])

    assert grid.layer_ranges(UNEVEN) == [range(3), range(3, 6), range(6, 7)]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (Grid(0, 2), "layer_partition = 0"),
        (Grid(61, 2), "layer_partition = 61"),
        (Grid(30, 3), "8 KV heads"),
        (Grid(30, 0), "head_partition = 0"),
    ],
)
def test_grid_that_cannot_cut_the_model_is_refused(grid: Grid, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        grid.check(SIXTY)


def test_mla_has_no_head_axis() -> None:
    with pytest.raises(LayoutError, match="MLA"):
        Grid(7, 1).check(LATENT)
