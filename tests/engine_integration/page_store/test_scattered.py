"""A page in several runs of a larger memory is stored and read like one that lies in one place."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from hicache_storage.engine_integration.page_store import PageRuns, ScatteredPage
from hicache_storage.errors import LayoutError
from hicache_storage.layout import Grid, KVShape, Topology, page_hashes
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.page_store.coded import POISON, Deployment, coded_page

SHAPE = KVShape.mha(num_layers=4, num_kv_heads=4, head_dim=16, dtype="float32", page_tokens=16)
PAGES = 3
HASHES = page_hashes(range(PAGES * 16), page_tokens=16)


def random_runs(rng: random.Random, nbytes: int) -> tuple[PageRuns, int]:
    """Return runs of odd lengths in a random order with gaps between them, and where the last of them ends."""
    cuts = sorted({0, nbytes, *(rng.randrange(nbytes) for _ in range(rng.randrange(1, 9)))})
    lengths = [stop - start for start, stop in pairwise(cuts)]
    order = rng.sample(range(len(lengths)), len(lengths))
    offsets, at = [0] * len(lengths), 0
    for index in order:
        at += rng.randrange(0, 7)
        offsets[index] = at
        at += lengths[index]
    return PageRuns(list(zip(offsets, lengths, strict=True))), at


@pytest.mark.parametrize("case", range(20))
@pytest.mark.parametrize("grid", [Grid(4, 4), Grid(2, 4), Grid(1, 2)], ids=str)
def test_page_in_runs_is_stored_and_read_as_one_in_one_place(grid: Grid, case: int) -> None:
    rng = random.Random(case)
    deployment = Deployment(MemoryStore(), SHAPE, grid, Topology())
    layout = deployment.layouts[0, 0]
    runs, page_nbytes = random_runs(rng, layout.page_nbytes)
    memory = memoryview(bytearray([POISON]) * (page_nbytes * PAGES))
    pages = [ScatteredPage(memory, runs, page_nbytes * page) for page in range(PAGES)]
    for number, page in enumerate(pages):
        fill(page, coded_page(layout, number))

    assert all(deployment.client().write_pages(HASHES, pages))
    in_one_place = deployment.read(HASHES)
    before = bytes(memory)
    memory[:] = bytes([POISON]) * len(memory)

    assert in_one_place[1] == [coded_page(layout, page) for page in range(PAGES)]
    assert all(deployment.client().read_pages(HASHES, pages))
    assert bytes(memory) == before


def fill(page: ScatteredPage, body: bytearray) -> None:
    start = 0
    for part in page.parts(0, page.nbytes):
        part[:] = body[start : start + part.nbytes]
        start += part.nbytes


def test_span_of_a_page_is_cut_out_of_its_runs() -> None:
    runs = PageRuns([(10, 4), (30, 6), (0, 2)])

    assert (runs.nbytes, runs.stop) == (12, 36)
    assert list(runs.span(0, 12)) == [(10, 4), (30, 6), (0, 2)]
    assert runs.span(3, 2) == [(13, 1), (30, 1)]
    assert runs.span(4, 6) == [(30, 6)]
    assert runs.span(11, 1) == [(1, 1)]
    assert runs.span(12, 0) == []


def test_page_that_ends_behind_its_memory_is_refused() -> None:
    runs = PageRuns([(0, 4), (6, 4)])

    ScatteredPage(memoryview(bytearray(12)), runs, 2)
    with pytest.raises(LayoutError, match="from 3 to 13"):
        ScatteredPage(memoryview(bytearray(12)), runs, 3)


@pytest.mark.parametrize("run", [(-1, 4), (0, 0), (0, -1)])
def test_run_of_nothing_or_nowhere_is_refused(run: tuple[int, int]) -> None:
    with pytest.raises(LayoutError):
        PageRuns([run])


def test_reader_of_other_head_groups_cannot_read_into_runs() -> None:
    deployment = Deployment(MemoryStore(), SHAPE, Grid(4, 4), Topology(2, 1))
    client = deployment.client(read_only=True)
    page = ScatteredPage(memoryview(bytearray(client.layout.page_nbytes)), PageRuns([(0, client.layout.page_nbytes)]))

    assert not client.reads_in_place
    with pytest.raises(LayoutError, match="other head groups"):
        client.read_pages(HASHES[:1], [page])


def test_page_in_runs_of_read_only_memory_is_not_read_into() -> None:
    deployment = Deployment(MemoryStore(), SHAPE, Grid(4, 4), Topology())
    client = deployment.client()
    page = ScatteredPage(memoryview(bytes(client.layout.page_nbytes)), PageRuns([(0, client.layout.page_nbytes)]))

    with pytest.raises(LayoutError, match="read-only"):
        client.read_pages(HASHES[:1], [page])


def test_present_pages_are_told_one_by_one() -> None:
    deployment = Deployment(MemoryStore(), SHAPE, Grid(2, 2), Topology())
    hashes = page_hashes(range(6 * 16), page_tokens=16)
    deployment.write_all(hashes)
    (victim, *_) = [info.key for info in deployment.store.list_keys() if info.key.startswith(hashes[2])]
    deployment.store.delete(victim)

    client = deployment.client(read_only=True)

    assert client.present_pages(hashes) == [True, True, False, True, True, True]
    assert client.lookup_prefix(hashes) == 2
