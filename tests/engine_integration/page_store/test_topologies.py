"""F4, F5: what one topology wrote, every other one reads, to the byte."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hicache_storage import open_store
from hicache_storage.errors import LayoutError
from hicache_storage.layout import Grid, KVShape, ShardLayout, Topology, coarsest_grid
from hicache_storage.store import ObjectStore
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from hicache_storage.types import Status
from tests.engine_integration.page_store.coded import Deployment, coded_page, hashes_of

ARTICLE = KVShape.mha(num_layers=60, num_kv_heads=8, head_dim=8, dtype="float32", page_tokens=4)
ARTICLE_READERS = ["tp1pp1", "tp2pp1", "tp4pp1", "tp4pp2", "tp8pp1", "tp8pp4", "tp1pp3", "tp1pp4", "tp16pp1"]
COARSE, FINE = Grid(30, 2), Grid(15, 1)
OBJECTS_PER_PAGE_AND_RANK = {
    COARSE: {"tp1pp1": 8, "tp2pp1": 4, "tp4pp1": 2, "tp4pp2": 1},
    FINE: {"tp1pp1": 32, "tp2pp1": 16, "tp4pp1": 8, "tp4pp2": 4, "tp8pp1": 4, "tp8pp4": 1, "tp1pp4": 8},
}
ARTICLE_WRITERS = [
    pytest.param(grid, writer, id=f"{grid.layer_partition}x{grid.head_partition}-{writer}")
    for grid, counts in OBJECTS_PER_PAGE_AND_RANK.items()
    for writer in counts
]
BIG_CELLS = KVShape.mha(num_layers=6, num_kv_heads=6, head_dim=32, dtype="float32", page_tokens=16)
LATENT = KVShape.mla(num_layers=7, latent_dim=36, dtype="float32", page_tokens=8)
PAGES = 3


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    options = {"path": str(tmp_path)} if request.param == "file" else {}
    with open_store(request.param, options) as opened:
        yield opened


def assert_every_rank_reads_its_own_bytes(reader: Deployment, hashes: list[str]) -> None:
    for rank, layout in reader.layouts.items():
        assert reader.client(rank, read_only=True).lookup_prefix(hashes) == len(hashes)
        outcomes, pages = reader.read(hashes, rank)
        assert all(outcomes), (reader.topology.name, rank, outcomes)
        assert pages == [coded_page(layout, page) for page in range(len(hashes))], (reader.topology.name, rank)


@pytest.mark.parametrize(("grid", "writer"), ARTICLE_WRITERS)
def test_articles_grids_are_shared_by_every_topology(store: ObjectStore, grid: Grid, writer: str) -> None:
    hashes = hashes_of(PAGES, ARTICLE.page_tokens)
    writers = Deployment(store, ARTICLE, grid, Topology.parse(writer))
    writers.write_all(hashes)

    for name in ARTICLE_READERS:
        assert_every_rank_reads_its_own_bytes(Deployment(store, ARTICLE, grid, Topology.parse(name)), hashes)

    counts = OBJECTS_PER_PAGE_AND_RANK[grid]
    assert {writers.client(rank).objects_per_page for rank in writers.layouts} == {counts[writer]}
    assert sum(1 for _ in store.list_keys()) == PAGES * counts["tp1pp1"] + 1


@pytest.mark.parametrize(
    ("shape", "writers", "readers"),
    [
        (BIG_CELLS, ["tp3pp2", "tp1pp3", "tp6pp1"], ["tp1pp1", "tp2pp1", "tp3pp2", "tp6pp6", "tp12pp1", "tp2pp4"]),
        (LATENT, ["tp1pp1", "tp4pp2", "tp2pp7"], ["tp1pp1", "tp4pp1", "tp1pp3", "tp2pp7"]),
    ],
    ids=["mha", "mla"],
)
def test_every_pair_of_topologies_shares(
    store: ObjectStore, shape: KVShape, writers: list[str], readers: list[str]
) -> None:
    hashes = hashes_of(PAGES, shape.page_tokens)
    for name in writers:
        topology = Topology.parse(name)
        grid = coarsest_grid(shape, [topology])
        Deployment(store, shape, grid, topology, model_id=name).write_all(hashes)
        for reader in readers:
            deployment = Deployment(store, shape, grid, Topology.parse(reader), model_id=name)
            assert_every_rank_reads_its_own_bytes(deployment, hashes)


@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_ranks_that_write_at_once_never_share_an_object(store: ObjectStore, tp: int, pp: int) -> None:
    topology = Topology(tp, pp)
    hashes = hashes_of(4, ARTICLE.page_tokens)
    deployment = Deployment(store, ARTICLE, FINE, topology)

    with ThreadPoolExecutor(tp * pp) as ranks:
        outcomes = list(ranks.map(lambda rank: deployment.write(hashes, rank), topology.ranks()))

    assert {outcome.status for outcome in itertools.chain.from_iterable(outcomes)} == {Status.STORED}
    assert sum(1 for _ in store.list_keys()) == len(hashes) * 32 + 1
    assert_every_rank_reads_its_own_bytes(deployment, hashes)


def test_ranks_that_hold_the_same_bytes_may_race(store: ObjectStore) -> None:
    hashes = hashes_of(8, LATENT.page_tokens)
    deployment = Deployment(store, LATENT, Grid(7, 0), Topology(4, 1))

    with ThreadPoolExecutor(4) as ranks:
        outcomes = list(ranks.map(lambda rank: deployment.write(hashes, rank), deployment.topology.ranks()))

    assert all(itertools.chain.from_iterable(outcomes))
    assert_every_rank_reads_its_own_bytes(deployment, hashes)


@pytest.mark.parametrize(
    ("grid", "name", "numbers"),
    [
        (COARSE, "tp8pp1", ("1 per rank", "grid of 2 heads")),
        (COARSE, "tp8pp4", (r"\[0, 15\)", "grid of 30 layers")),
        (COARSE, "tp1pp3", (r"\[0, 20\)", "grid of 30 layers")),
        (COARSE, "tp1pp4", (r"\[0, 15\)", "grid of 30 layers")),
        (FINE, "tp1pp3", (r"\[0, 20\)", "grid of 15 layers")),
    ],
    ids=str,
)
def test_writer_that_does_not_tile_the_grid_is_refused_at_construction(
    grid: Grid, name: str, numbers: tuple[str, str]
) -> None:
    deployment = Deployment(MemoryStore(MemoryOptions()), ARTICLE, grid, Topology.parse(name))

    with pytest.raises(LayoutError, match=f"{numbers[0]}.*{numbers[1]}"):
        deployment.client()


def test_reader_of_a_finer_topology_moves_only_what_it_needs() -> None:
    shape = KVShape.mha(num_layers=60, num_kv_heads=8, head_dim=128, dtype="bfloat16", page_tokens=64)
    topology = Topology(4, 4)
    layout = ShardLayout(shape, Grid(60, 2), topology.shard(shape, tp_rank=1, pp_rank=2))
    deployment = Deployment(MemoryStore(MemoryOptions()), shape, Grid(60, 2), topology)

    fetched = deployment.client((1, 2), read_only=True).object_nbytes_per_page

    assert layout.page_nbytes <= fetched < layout.page_nbytes + 1024
