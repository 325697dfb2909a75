"""A worker fills exactly the blocks it was told to, with verified bytes, and names those it could not fill."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from concurrent.futures._base import DoneAndNotDoneFutures

import pytest
import torch
from torch import Tensor

from hicache_storage import telemetry
from hicache_storage.engine_integration.adapters.vllm import worker_side
from hicache_storage.engine_integration.adapters.vllm.blocks import EngineBlocks
from hicache_storage.engine_integration.adapters.vllm.row_place import measure_places
from hicache_storage.engine_integration.adapters.vllm.work import PageLoad, PageSave, StepWork
from hicache_storage.engine_integration.adapters.vllm.worker_side import Ended, WorkerSide
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.layout import Grid, KVShape, Namespace, Shard, ShardLayout, page_hashes
from hicache_storage.store import ObjectStore
from hicache_storage.testing.faults import Fault, FaultyStore, Gate
from hicache_storage.testing.memory import MemoryStore
from tests.engines.vllm.test_row_place import tiles

LAYERS, HEADS, BLOCK, DIM, BLOCKS = 2, 2, 32, 64, 24
HASHES = tuple(page_hashes(range(BLOCK * 20), BLOCK * 2))
SHAPE = KVShape.mha(num_layers=LAYERS, num_kv_heads=HEADS, head_dim=DIM, dtype="float32", page_tokens=2 * BLOCK)
GRID = Grid(1, 1)


class Worker:
    """One rank's half over a pool of its own."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        layers: range = range(LAYERS),
        heads: range = range(HEADS),
        seed: int | None = None,
        staging_pages: int = 16,
    ) -> None:
        self.layout = ShardLayout(SHAPE, GRID, Shard(layers, heads))
        shape = (len(layers), BLOCKS, len(heads) * BLOCK * DIM * 2)
        generator = torch.Generator().manual_seed(seed or 0)
        self.kv = torch.zeros(shape) if seed is None else torch.rand(shape, generator=generator)
        places = measure_places(self._pack, BLOCK, len(heads), DIM)
        namespace = Namespace.of(model_id="m", shape=SHAPE, grid=GRID)
        self.pages = PageStore(store, namespace, self.layout)
        blocks = EngineBlocks(list(self.kv.unbind()), *places, self.layout)
        self.side = WorkerSide(self.pages, blocks, writes=True, staging_pages=staging_pages, load_threads=2)

    def save(self, pages: range, block_ids: tuple[int, ...]) -> dict[str, int]:
        """Store pages and wait until they are stored."""
        save = PageSave("r", HASHES[pages.start : pages.stop], HASHES[: pages.start], block_ids)
        return self.side.submit_saves(StepWork(saves=[save]))

    def load(self, *loads: PageLoad) -> Ended:
        """Load and wait for the end of all."""
        self.side.submit_loads(StepWork(loads=list(loads)))
        names: set[str] = set()
        failed: set[int] = set()
        while len(names) < len(loads):
            ended = self.side.ended(idle=True)
            names |= ended.request_ids
            failed |= ended.failed_blocks
        return Ended(names, failed)

    def rows(self, block: int) -> Tensor:
        return self.kv[:, block]

    @staticmethod
    def _pack(keys: Tensor, values: Tensor) -> Tensor:
        heads = keys.shape[1]
        k = keys.view(2, 16, heads, DIM // 2, 2).permute(2, 0, 3, 1, 4).flatten(1)
        v = values.permute(1, 0, 2).flatten(1)
        return torch.cat([k, v], dim=1).flatten()


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with MemoryStore() as memory:
        yield memory


def test_stored_blocks_come_back_in_other_places(store: ObjectStore) -> None:
    writer, reader = Worker(store, seed=5), Worker(store)
    writer.save(range(3), (4, 9, 1, 0, 7, 3))
    assert writer.side.close(30)

    ended = reader.load(PageLoad("r", HASHES[:3], (), 0, (20, 8, 2, 21, 5, 6)))

    assert ended == Ended({"r"}, set())
    for source, target in zip((4, 9, 1, 0, 7, 3), (20, 8, 2, 21, 5, 6), strict=True):
        assert torch.equal(reader.rows(target), writer.rows(source))
    assert reader.pages.counters[telemetry.PAGES_LOADED] == 3


def test_only_the_named_blocks_of_a_page_are_filled(store: ObjectStore) -> None:
    writer, reader = Worker(store, seed=5), Worker(store)
    writer.save(range(2), (0, 1, 2, 3))
    writer.side.close(30)

    reader.load(PageLoad("r", HASHES[:2], (), 1, (10, 11)))

    assert torch.equal(reader.rows(10), writer.rows(1))
    assert torch.equal(reader.rows(11), writer.rows(2))
    assert int(reader.kv.any(dim=2).any(dim=0).sum()) == 2


def test_blocks_may_change_as_soon_as_the_step_is_over(store: ObjectStore) -> None:
    writer, reader = Worker(store, seed=5), Worker(store)
    before = writer.kv.clone()
    writer.save(range(1), (0, 1))
    writer.kv.fill_(-1)
    writer.side.close(30)

    reader.load(PageLoad("r", HASHES[:1], (), 0, (3, 4)))

    assert torch.equal(reader.rows(3), before[:, 0])


def test_missing_page_fails_itself_and_all_behind_it(store: ObjectStore) -> None:
    writer, reader = Worker(store, seed=5), Worker(store)
    writer.save(range(3), (0, 1, 2, 3, 4, 5))
    writer.side.close(30)
    for info in list(store.list_keys(HASHES[1])):
        store.delete(info.key)

    ended = reader.load(PageLoad("r", HASHES[:3], (), 0, (10, 11, 12, 13, 14, 15)))

    assert ended == Ended({"r"}, {12, 13, 14, 15})
    assert torch.equal(reader.rows(11), writer.rows(1))
    assert not reader.kv[:, 12:16].any()


def test_damaged_page_is_never_loaded(store: ObjectStore) -> None:
    writer, reader = Worker(store, seed=5), Worker(store)
    writer.save(range(1), (0, 1))
    writer.side.close(30)
    key = next(info.key for info in store.list_keys(HASHES[0]))
    body = bytearray(store.stat(key).nbytes)  # type: ignore[union-attr] # it is there
    store.read_into(key, 0, [memoryview(body)])
    body[100] ^= 1
    store.delete(key)
    store.write(key, [bytes(body)])

    ended = reader.load(PageLoad("r", HASHES[:1], (), 0, (3, 4)))

    assert ended.failed_blocks == {3, 4}
    assert not reader.kv.any()


def test_long_prompt_goes_through_little_memory(store: ObjectStore) -> None:
    writer, reader = Worker(store, seed=5), Worker(store, staging_pages=2)
    writer.save(range(10), tuple(range(20)))
    writer.side.close(30)

    ended = reader.load(PageLoad("r", HASHES[:10], (), 0, tuple(range(20))))

    assert ended.failed_blocks == set()
    assert torch.equal(reader.kv[:, :20], writer.kv[:, :20])


def test_pages_without_room_are_named(store: ObjectStore) -> None:
    writer = Worker(store, seed=5, staging_pages=3)

    assert writer.save(range(5), tuple(range(10))) == {"r": 3}
    writer.side.close(30)
    assert writer.pages.lookup_prefix(HASHES[:5]) == 3


def test_room_for_a_copy_that_fails_is_free_again(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Worker(store, seed=5, staging_pages=2)

    def refuse(block_ids: Sequence[int], rows: Tensor) -> None:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(writer.side._blocks, "gather", refuse)
        with pytest.raises(torch.OutOfMemoryError):
            writer.save(range(2), (0, 1, 2, 3))

    assert writer.save(range(2), (0, 1, 2, 3)) == {}
    writer.side.close(30)
    assert writer.pages.lookup_prefix(HASHES[:2]) == 2


def test_room_for_a_copy_that_nobody_can_store_is_free_again(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Worker(store, seed=5, staging_pages=2)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            writer.save(range(2), (0, 1, 2, 3))

    assert writer.save(range(2), (0, 1, 2, 3)) == {}
    writer.side.close(30)
    assert writer.pages.lookup_prefix(HASHES[:2]) == 2


def test_what_is_dropped_is_not_stored_later(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    writer = Worker(FaultyStore(store, [Fault("write", "delay", gate=gate)]), seed=5)
    writer.save(range(1), (0, 1))
    assert gate.entered.wait(30)
    writer.save(range(1, 2), (2, 3))

    def opening(writes: set[Future[None]], timeout_s: float | None = None) -> DoneAndNotDoneFutures[None]:
        """The first write ends once the worker waits for it."""
        gate.open()
        return wait(writes, timeout_s)

    monkeypatch.setattr(worker_side, "wait", opening)

    writer.side.submit_saves(StepWork(drops_saves=True))
    at_once = writer.pages.lookup_prefix(HASHES[:2])
    writer.side.close(30)

    assert (at_once, writer.pages.lookup_prefix(HASHES[:2])) == (1, 1)


def test_step_that_drops_what_was_given_stores_its_own(store: ObjectStore) -> None:
    writer = Worker(store, seed=5)

    writer.side.submit_saves(StepWork(saves=[PageSave("r", HASHES[:1], (), (0, 1))], drops_saves=True))
    writer.side.close(30)

    assert writer.pages.lookup_prefix(HASHES[:1]) == 1


def test_loads_of_several_requests_end_each_for_itself(store: ObjectStore) -> None:
    writer, reader = Worker(store, seed=5), Worker(store)
    writer.save(range(2), (0, 1, 2, 3))
    writer.side.close(30)

    ended = reader.load(PageLoad("a", HASHES[:2], (), 0, (4, 5, 6, 7)), PageLoad("b", HASHES[2:3], (), 0, (8, 9)))

    assert ended == Ended({"a", "b"}, {8, 9})


def test_fault_in_a_load_fails_all_its_blocks(store: ObjectStore) -> None:
    reader = Worker(store)

    ended = reader.load(PageLoad("r", ("no hash",), (), 0, (3, 4)))

    assert ended == Ended({"r"}, {3, 4})
    assert reader.pages.counters[f"{telemetry.LOAD_FAILED}.LayoutError"] == 1


def test_two_ranks_write_what_one_rank_reads(store: ObjectStore) -> None:
    writers = [Worker(store, heads=range(rank, rank + 1), seed=rank + 1) for rank in range(2)]
    for writer in writers:
        writer.save(range(2), (0, 1, 2, 3))
        writer.side.close(30)
    reader = Worker(store)

    ended = reader.load(PageLoad("r", HASHES[:2], (), 0, (5, 6, 7, 8)))

    assert ended.failed_blocks == set()
    per_head = BLOCK * DIM * 2
    for rank, writer in enumerate(writers):
        share = reader.kv[:, 5:9, rank * per_head : (rank + 1) * per_head]
        assert torch.equal(share, writer.kv[:, :4])


def test_two_stages_write_what_one_rank_reads(store: ObjectStore) -> None:
    writers = [Worker(store, layers=range(stage, stage + 1), seed=stage + 1) for stage in range(LAYERS)]
    for writer in writers:
        writer.save(range(2), (0, 1, 2, 3))
        writer.side.close(30)
    reader = Worker(store)

    ended = reader.load(PageLoad("r", HASHES[:2], (), 0, (5, 6, 7, 8)))

    assert ended.failed_blocks == set()
    for stage, writer in enumerate(writers):
        assert torch.equal(reader.kv[stage, 5:9], writer.kv[0, :4])


def test_tiles_of_the_matrix_unit_are_a_packing_too() -> None:
    keys, _ = measure_places(tiles, 32, 3, 64)

    assert keys.tokens.sizes == (2, 16)
