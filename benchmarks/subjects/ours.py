"""This project: verified pages over the file backend, and the file backend alone with the same objects."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.memory import Arena
from benchmarks.serve import serve
from benchmarks.subject import Subject, Verdict, timed
from benchmarks.workload import Workload
from hicache_storage.backends.file import FileStore
from hicache_storage.backends.file.options import FileOptions
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
from hicache_storage.types import ObjectWrite, Outcome, RangeRead, Status

_VERDICTS = {Status.MISS: Verdict.MISS, Status.FAILED: Verdict.MISS}


class Pages(Subject):
    """PageStore over FileStore: every byte that is read is verified.

    Args:
        objects_per_page: a page is this many of the workload's objects, one behind the other; the model
            then has as many times the workload's layers, on a grid of the workload's layers.
    """

    def __init__(self, objects_per_page: int = 1) -> None:
        self.version = version("hicache-storage")
        self._per_page = objects_per_page
        self.calls = {
            "write": "PageStore.write_pages over FileStore",
            "read": "PageStore.read_pages over FileStore, checksums verified",
            "exists": "PageStore.lookup_prefix over FileStore",
        }

    def prepare(self, workload: Workload) -> None:
        shape = KVShape.mha(
            num_layers=workload.num_layers * self._per_page,
            num_kv_heads=workload.kv_heads,
            head_dim=workload.head_dim,
            dtype="bfloat16",
            page_tokens=workload.page_tokens,
        )
        grid = Grid(layer_partition=workload.num_layers, head_partition=workload.kv_heads)
        layout = ShardLayout(shape, grid, Topology.parse("tp1pp1").shard(shape, tp_rank=0, pp_rank=0))
        self._workload = workload
        self._content = workload.content()
        self._pages = workload.objects // self._per_page
        self._source = Arena(self._pages, layout.page_nbytes)
        self._source.fill(self._content)
        self._target = Arena(self._pages, layout.page_nbytes)
        self._store = FileStore(FileOptions(path=Path(workload.folder), io_threads=workload.threads))
        self._namespace = Namespace.of(model_id="demo/model", shape=shape, grid=grid)
        self._client = PageStore(self._store, self._namespace, layout)
        self._hashes = [workload.page_hash(number) for number in range(self._pages)]
        step = max(1, workload.batch // self._per_page)
        self._batches = [slice(start, start + step) for start in range(0, self._pages, step)]
        self._plan_calls(layout)

    def write(self) -> float:
        return timed(lambda: [self._client.write_pages(self._hashes[b], self._source.views[b]) for b in self._batches])

    def read(self) -> float:
        return timed(lambda: [self._client.read_pages(self._hashes[b], self._target.views[b]) for b in self._batches])

    def exists(self) -> float:
        return timed(lambda: [self._client.lookup_prefix(self._hashes[batch]) for batch in self._batches])

    def clear_memory(self) -> None:
        self._target.clear()

    def wrong_objects(self) -> int:
        return self._target.wrong(self._content)

    def wipe(self) -> None:
        self._client.clear()

    def store_some(self, numbers: Sequence[int]) -> None:
        self._client.write_pages([self._hashes[n] for n in numbers], [self._source.views[n] for n in numbers])

    def fetch_some(self, numbers: Sequence[int]) -> list[Verdict]:
        self.clear_memory()
        pages = [self._target.views[n] for n in numbers]
        outcomes = self._client.read_pages([self._hashes[n] for n in numbers], pages)
        return [self._verdict(n, outcome) for n, outcome in zip(numbers, outcomes, strict=True)]

    def release(self) -> None:
        self._store.close()
        self._source.close()
        self._target.close()

    def _plan_calls(self, layout: ShardLayout) -> None:
        """Prepare more than the client needs; nothing here."""

    def _verdict(self, number: int, outcome: Outcome) -> Verdict:
        if outcome.status in _VERDICTS:
            return _VERDICTS[outcome.status]
        right = bytes(self._target.views[number]) == bytes(self._source.views[number])
        return Verdict.RIGHT if right else Verdict.WRONG


class StoreAlone(Pages):
    """FileStore with the very objects that `Pages` keeps: trailers made beforehand, fetched, not looked at.

    What `Pages` costs more than this is the price of hashing, checking and planning.
    """

    def __init__(self, objects_per_page: int = 1) -> None:
        super().__init__(objects_per_page)
        self.calls = {
            "write": "FileStore.write_many, trailers made beforehand",
            "read": "FileStore.read_many of payload and trailer, nothing verified",
            "exists": "FileStore.exists_many",
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
        return timed(lambda: [self._store.write_many(batch) for batch in self._writes])

    def read(self) -> float:
        return timed(lambda: [self._store.read_many(batch) for batch in self._reads])

    def exists(self) -> float:
        batches = [[write.key for write in batch] for batch in self._writes]
        return timed(lambda: [self._store.exists_many(keys) for keys in batches])

    def release(self) -> None:
        for view in self._views():
            view.release()
        super().release()

    def _views(self) -> Iterable[memoryview]:
        buffers = [part for batch in self._writes for write in batch for part in write.parts]
        buffers += [target for batch in self._reads for read in batch for target in read.targets]
        return [buffer for buffer in buffers if isinstance(buffer, memoryview)]


if __name__ == "__main__":
    serve(Pages(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
