"""A reader that is finer than the grid takes a bounded amount of memory beside its pages, and no longer than it needs it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence

import pytest

from hicache_storage.engine_integration.page_store import reading
from hicache_storage.engine_integration.page_store.reading import ReadStep, pages_per_batch
from hicache_storage.engine_integration.page_store.rows import copy_rows
from hicache_storage.layout import Grid, KVShape, RowCopy, ShardLayout, Topology, plan_reads
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from hicache_storage.types import Outcome, RangeRead, nbytes_of
from tests.engine_integration.page_store.coded import Deployment, coded_page, hashes_of

SHAPE = KVShape.mha(num_layers=2, num_kv_heads=4, head_dim=128, dtype="float32", page_tokens=16)
GRID = Grid(1, 4)
WHOLE = Topology(1, 1)
FINER = Topology(4, 1)
PAGES = 40
HASHES = hashes_of(PAGES, SHAPE.page_tokens)
PAGE_SCRATCH_NBYTES = 2 * 4 * 16 * 2 * 128 * 4


class Recording(MemoryStore):
    """Notes how much memory the requests of each batch bring."""

    def __init__(self) -> None:
        super().__init__(MemoryOptions())
        self.batches: list[int] = []

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        requests = list(reads)
        targets = {id(target): nbytes_of(target) for read in requests for target in read.targets}
        self.batches.append(sum(targets.values()))
        return super().read_many(requests)


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def finer_layout(shape: KVShape, grid: Grid) -> ShardLayout:
    return ShardLayout(shape, grid, FINER.shard(shape, tp_rank=1, pp_rank=0))


def test_batch_of_a_finer_reader_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    budget_nbytes = 5 * PAGE_SCRATCH_NBYTES + 1000
    monkeypatch.setattr(reading, "_BATCH_SCRATCH_NBYTES", budget_nbytes)
    store = Recording()
    Deployment(store, SHAPE, GRID, WHOLE).write_all(HASHES)
    reader = Deployment(store, SHAPE, GRID, FINER)

    outcomes, pages = reader.read(HASHES, (1, 0))

    assert all(outcomes)
    assert pages == [coded_page(reader.layouts[1, 0], page) for page in range(PAGES)]
    assert len(store.batches) > PAGES // 6
    assert max(store.batches) <= budget_nbytes


def test_scratch_of_a_batch_is_at_most_64_mib_at_any_size_of_page() -> None:
    for head_dim in (64, 128, 1024, 8192):
        shape = KVShape.mha(num_layers=8, num_kv_heads=4, head_dim=head_dim, dtype="float32", page_tokens=64)
        steps = [ReadStep.of(plan) for plan in plan_reads(finer_layout(shape, Grid(1, 4)))]
        page_nbytes = sum(step.scratch_nbytes for step in steps)

        pages = pages_per_batch(steps)

        assert page_nbytes >= 4 * 8 * 2 * 64 * head_dim * 4
        assert pages == 1 or pages * page_nbytes <= 64 << 20
        assert (pages + 1) * page_nbytes > 64 << 20 or (pages + 1) * len(steps) > 1024


def test_reader_on_the_grid_needs_no_scratch_but_for_trailers() -> None:
    layout = ShardLayout(SHAPE, GRID, WHOLE.shard(SHAPE, tp_rank=0, pp_rank=0))
    steps = [ReadStep.of(plan) for plan in plan_reads(layout)]

    assert sum(step.scratch_nbytes for step in steps) < 1000
    assert pages_per_batch(steps) == 1024 // len(steps)


@pytest.mark.usefixtures("traced")
def test_scratch_of_an_object_is_gone_when_the_next_one_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(MemoryOptions())
    Deployment(store, SHAPE, GRID, WHOLE).write_all(HASHES)
    reader = Deployment(store, SHAPE, GRID, FINER)
    live_nbytes: list[int] = []

    def measured(src: memoryview, dst: memoryview, copy: RowCopy) -> None:
        live_nbytes.append(tracemalloc.get_traced_memory()[0])
        copy_rows(src, dst, copy)

    monkeypatch.setattr(reading, "copy_rows", measured)

    assert all(reader.read(HASHES, (1, 0))[0])

    assert len(live_nbytes) == 2 * PAGES
    freed = live_nbytes[0] - live_nbytes[-1]
    assert freed > (PAGES - 2) * PAGE_SCRATCH_NBYTES
