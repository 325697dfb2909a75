"""This project: verified pages over one of its backends, and the backend alone with the same objects."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypeVar

from benchmarks.memory import Arena
from benchmarks.serve import serve
from benchmarks.subject import PAGE_CACHE, Subject, SubjectFailed, Verdict, timed
from benchmarks.workload import Workload
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.layout import (
    Grid,
    KVShape,
    Namespace,
    ShardLayout,
    Topology,
    build_trailer,
    object_key,
    plan_reads,
)
from hicache_storage.registry import open_store
from hicache_storage.store import ObjectStore
from hicache_storage.types import ObjectWrite, Outcome, RangeRead, ReadableBuffer, Status, nbytes_of

T = TypeVar("T")

_VERDICTS = {Status.MISS: Verdict.MISS, Status.FAILED: Verdict.MISS}


@dataclass(frozen=True, slots=True)
class Backend:
    """Where the pages of this project go.

    Attributes:
        store: name of the store's class, for tables.
        options: of the backend, without folder and threads, which the workload has.
    """

    name: str
    store: str
    options: Mapping[str, object]
    page_cache: str = PAGE_CACHE

    def open(self, workload: Workload) -> ObjectStore:
        folder = {"path": workload.folder} if self.name == "file" else {}
        return open_store(self.name, {**self.options, **folder, "io_threads": workload.threads})


FILE = Backend("file", "FileStore", {})


class Pages(Subject):
    """PageStore over a backend: every byte that is read is verified.

    Args:
        objects_per_page: a page is this many of the workload's objects, one behind the other; the model
            then has as many times the workload's layers, on a grid of the workload's layers.
        cells: instead, every object of the workload is a page that is cut into this many objects, at most one a layer.
    """

    def __init__(self, objects_per_page: int = 1, *, cells: int = 1, backend: Backend = FILE) -> None:
        self.version = version("hicache-storage")
        self._per_page = objects_per_page
        self._cells = cells
        self._backend = backend
        self.page_cache = backend.page_cache
        self.calls = {
            "write": f"PageStore.write_pages over {backend.store}",
            "read": f"PageStore.read_pages over {backend.store}, checksums verified",
            "ranged": f"PageStore.read_pages over {backend.store} by a rank with half of the layers, checksums verified",
            "exists": f"PageStore.lookup_prefix over {backend.store}",
        }

    def prepare(self, workload: Workload) -> None:
        shape = KVShape.mha(
            num_layers=workload.num_layers * self._per_page,
            num_kv_heads=workload.kv_heads,
            head_dim=workload.head_dim,
            dtype="bfloat16",
            page_tokens=workload.page_tokens,
        )
        grid = Grid(
            layer_partition=max(1, workload.num_layers // self._cells),
            head_partition=workload.kv_heads,
        )
        layout = ShardLayout(shape, grid, Topology.parse("tp1pp1").shard(shape, tp_rank=0, pp_rank=0))
        self._workload = workload
        self._content = workload.content()
        self._pages = workload.objects // self._per_page
        self._source = Arena(self._pages, layout.page_nbytes)
        self._source.fill(self._content)
        self._target = Arena(self._pages, layout.page_nbytes)
        self._store = self._backend.open(workload)
        self._register_memory()
        self._namespace = Namespace.of(model_id="demo/model", shape=shape, grid=grid)
        self._client = PageStore(self._store, self._namespace, layout)
        self._hashes = [workload.page_hash(number) for number in range(self._pages)]
        step = max(1, workload.batch // self._per_page)
        self._batches = [slice(start, start + step) for start in range(0, self._pages, step)]
        self._first_byte = 0
        self._plan_calls(layout)

    def write(self) -> float:
        return _timed_outcomes(self._write_batch, self._batches)

    def read(self) -> float:
        self._first_byte = 0
        return _timed_outcomes(self._read_batch, self._batches)

    def ranged(self) -> float:
        shape = self._client.layout.shape
        shard = Topology.parse("tp1pp2").shard(shape, tp_rank=0, pp_rank=1)
        client = PageStore(
            self._store, self._namespace, ShardLayout(shape, self._client.layout.grid, shard), read_only=True
        )
        self._first_byte = self._target.views[0].nbytes - client.layout.page_nbytes
        halves = [view[self._first_byte :] for view in self._target.views]
        try:
            return _timed_outcomes(lambda batch: client.read_pages(self._hashes[batch], halves[batch]), self._batches)
        finally:
            for half in halves:
                half.release()

    def exists(self) -> float:
        return timed(lambda: [self._client.lookup_prefix(self._hashes[batch]) for batch in self._batches])

    def clear_memory(self) -> None:
        self._target.clear()

    def wrong_objects(self) -> int:
        return self._target.wrong(self._content, self._first_byte)

    def wipe(self) -> None:
        self._client.clear()
        if self._client.lookup_prefix(self._hashes[:1]):
            raise SubjectFailed("objects are still there after they were deleted: the next write would store nothing")

    def store_some(self, numbers: Sequence[int]) -> None:
        self._client.write_pages([self._hashes[n] for n in numbers], [self._source.views[n] for n in numbers])

    def fetch_some(self, numbers: Sequence[int]) -> list[Verdict]:
        self.clear_memory()
        pages = [self._target.views[n] for n in numbers]
        outcomes = self._client.read_pages([self._hashes[n] for n in numbers], pages)
        return [self._verdict(n, outcome) for n, outcome in zip(numbers, outcomes, strict=True)]

    def release(self) -> None:
        for arena in (self._source, self._target):
            self._store.unregister_memory(arena.whole)
        self._store.close()
        self._source.close()
        self._target.close()

    def _register_memory(self) -> None:
        for arena in (self._source, self._target):
            self._store.register_memory(arena.whole)

    def _write_batch(self, batch: slice) -> Sequence[Outcome]:
        return self._client.write_pages(self._hashes[batch], self._source.views[batch])

    def _read_batch(self, batch: slice) -> Sequence[Outcome]:
        return self._client.read_pages(self._hashes[batch], self._target.views[batch])

    def _plan_calls(self, layout: ShardLayout) -> None:
        """Prepare more than the client needs; nothing here."""

    def _verdict(self, number: int, outcome: Outcome) -> Verdict:
        if outcome.status in _VERDICTS:
            return _VERDICTS[outcome.status]
        right = bytes(self._target.views[number]) == bytes(self._source.views[number])
        return Verdict.RIGHT if right else Verdict.WRONG


class StoreAlone(Pages):
    """The backend with the very objects that `Pages` keeps: trailers made beforehand, fetched, not looked at.

    What `Pages` costs more than this is the price of hashing, checking and planning.
    """

    def __init__(self, objects_per_page: int = 1, *, cells: int = 1, backend: Backend = FILE) -> None:
        super().__init__(objects_per_page, cells=cells, backend=backend)
        self.calls = {
            "write": f"{backend.store}.write_many, trailers made beforehand",
            "read": f"{backend.store}.read_many of payload and trailer, nothing verified",
            "ranged": f"{backend.store}.read_many of half of the payload and the trailer, nothing verified",
            "exists": f"{backend.store}.exists_many",
        }

    def _plan_calls(self, layout: ShardLayout) -> None:
        self._writes: list[list[ObjectWrite]] = []
        self._reads: list[list[RangeRead]] = []
        for batch in self._batches:
            objects = [self._object(self._hashes[n], n, layout) for n in range(self._pages)[batch]]
            self._writes.append([write for writes, _ in objects for write in writes])
            self._reads.append([read for _, reads in objects for read in reads])

    def _object(self, page_hash: str, page: int, layout: ShardLayout) -> tuple[list[ObjectWrite], list[RangeRead]]:
        writes, reads = [], []
        for plan in plan_reads(layout):
            key = object_key(page_hash, self._namespace.digest, plan.chunk.suffix)
            span = slice(plan.page_offset, plan.page_offset + plan.nbytes)
            payload = self._source.views[page][span]
            trailer = build_trailer(key, payload, plan.block_nbytes)
            writes.append(ObjectWrite(key, (payload, trailer)))
            targets = (self._target.views[page][span], bytearray(len(trailer)))
            reads.append(RangeRead(key, plan.offset, targets, object_nbytes=plan.object_nbytes))
        return writes, reads

    def write(self) -> float:
        return _timed_outcomes(self._store.write_many, self._writes)

    def read(self) -> float:
        self._first_byte = 0
        return _timed_outcomes(self._store.read_many, self._reads)

    def ranged(self) -> float:
        self._first_byte = self._target.views[0].nbytes // 2
        halves = [[_second_half(read) for read in batch] for batch in self._reads]
        try:
            return _timed_outcomes(self._store.read_many, halves)
        finally:
            _release(target for batch in halves for read in batch for target in read.targets)

    def exists(self) -> float:
        batches = [[write.key for write in batch] for batch in self._writes]
        return timed(lambda: [self._store.exists_many(keys) for keys in batches])

    def release(self) -> None:
        _release(part for batch in self._writes for write in batch for part in write.parts)
        _release(target for batch in self._reads for read in batch for target in read.targets)
        super().release()


def _timed_outcomes(call: Callable[[T], Sequence[Outcome]], batches: Sequence[T]) -> float:
    """Return the seconds of all calls.

    Raises:
        SubjectFailed: one of the requests missed or failed.
    """
    answers: list[Sequence[Outcome]] = []
    seconds = timed(lambda: answers.extend(call(batch) for batch in batches))
    outcomes = [outcome for answer in answers for outcome in answer]
    if bad := [outcome for outcome in outcomes if not outcome]:
        raise SubjectFailed(f"{len(bad)} of {len(outcomes)} requests without success: {bad[0].error or 'a miss'}")
    return seconds


def _second_half(read: RangeRead) -> RangeRead:
    """Return the read of the second half of the same payload, and of the trailer, into its place."""
    payload, trailer = read.targets
    half = memoryview(payload)[nbytes_of(payload) // 2 :]
    return RangeRead(read.key, read.offset + half.nbytes, (half, trailer), read.object_nbytes)


def _release(buffers: Iterable[ReadableBuffer]) -> None:
    for buffer in buffers:
        if isinstance(buffer, memoryview):
            buffer.release()


if __name__ == "__main__":
    serve(Pages(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
