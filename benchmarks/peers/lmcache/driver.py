"""LMCache 0.5.6: its L2 adapters ``fs`` (Python, aiofiles) and ``fs_native`` (C++), called as `lmcache bench l2` does.

Keys and memory objects come from LMCache's own benchmark (`l2_adapter_bench.data`). Each batch is
submitted as one task per thread and awaited on the adapter's event descriptor.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import torch
from lmcache.cli.commands.bench.l2_adapter_bench.data import (
    make_aligned_tensor,
    make_memory_objects,
    make_object_keys,
    wait_eventfd,
)
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2Adapter, FSL2AdapterConfig
from lmcache.v1.distributed.l2_adapters.fs_native_l2_adapter import (
    FSNativeL2AdapterConfig,
    _create_fs_native_l2_adapter,
)

from benchmarks.serve import serve
from benchmarks.subject import Subject, Verdict, timed
from benchmarks.workload import Workload, stripes

_LAYOUT = {0: MemoryLayoutDesc(shapes=[torch.Size([1])], dtypes=[torch.uint8])}
_TIMEOUT_S = 120.0


class Bitmap(Protocol):
    """LMCache's answer for a list of keys: bit n is set if key n was found or loaded."""

    def test(self, position: int, /) -> bool: ...


def open_adapter(kind: str, folder: str, threads: int) -> L2AdapterInterface:
    """Return the adapter of *kind*, buffered I/O, with its defaults for everything else."""
    if kind == "fs":
        return FSL2Adapter(FSL2AdapterConfig(base_path=folder))
    return _create_fs_native_l2_adapter(FSNativeL2AdapterConfig(base_path=folder, num_workers=threads))


class LMCacheFS(Subject):
    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.version = version("lmcache")
        name = "FSL2Adapter" if kind == "fs" else "NativeConnectorL2Adapter(LMCacheFSClient)"
        self.calls = {
            "write": f"{name}.submit_store_task, pop_completed_store_tasks",
            "read": f"{name}.submit_load_task, query_load_result",
            "exists": f"{name}.submit_lookup_and_lock_task, query_lookup_and_lock_result",
        }

    def prepare(self, workload: Workload) -> None:
        self._workload = workload
        size = workload.object_nbytes
        self._buffers = [make_aligned_tensor(workload.nbytes, 4096) for _ in range(2)]
        self._sources, self._targets = (
            make_memory_objects(buffer, workload.objects, size, 0) for buffer in self._buffers
        )
        self._buffers[0].copy_(torch.frombuffer(bytearray(workload.content()), dtype=torch.uint8))
        self._keys = make_object_keys(workload.objects)
        self._adapter = open_adapter(self._kind, workload.folder, workload.threads)
        self._batches = [stripes(batch, workload.threads) for batch in workload.batches()]

    def write(self) -> float:
        return timed(self._write_all)

    def read(self) -> float:
        return timed(lambda: [self._await_loads(self._submit_loads(parts)) for parts in self._batches])

    def exists(self) -> float:
        return timed(lambda: [self._await_lookups(self._submit_lookups(parts)) for parts in self._batches])

    def clear_memory(self) -> None:
        self._buffers[1].zero_()

    def wrong_objects(self) -> int:
        return sum(not self._is_right(number) for number in range(self._workload.objects))

    def wipe(self) -> None:
        self._adapter.close()
        for path in Path(self._workload.folder).rglob("*"):
            if path.is_file():
                path.unlink()
        self._adapter = open_adapter(self._kind, self._workload.folder, self._workload.threads)

    def store_some(self, numbers: Sequence[int]) -> None:
        self._await_stores(self._submit_stores([numbers]))

    def fetch_some(self, numbers: Sequence[int]) -> list[Verdict]:
        self.clear_memory()
        (found,) = self._await_lookups(self._submit_lookups([numbers])).values()
        there = [number for position, number in enumerate(numbers) if found.test(position)]
        (loaded,) = self._await_loads(self._submit_loads([there])).values()
        right = {number for position, number in enumerate(there) if loaded.test(position)}
        return [
            Verdict.MISS if n not in right else Verdict.RIGHT if self._is_right(n) else Verdict.WRONG for n in numbers
        ]

    def release(self) -> None:
        self._adapter.close()
        del self._sources, self._targets, self._buffers

    def _write_all(self) -> None:
        for parts in self._batches:
            self._await_stores(self._submit_stores(parts))

    def _submit_stores(self, parts: Sequence[Sequence[int]]) -> list[int]:
        submit = self._adapter.submit_store_task
        return [submit([self._keys[n] for n in part], [self._sources[n] for n in part]) for part in parts]

    def _submit_loads(self, parts: Sequence[Sequence[int]]) -> list[int]:
        submit = self._adapter.submit_load_task
        return [submit([self._keys[n] for n in part], [self._targets[n] for n in part]) for part in parts]

    def _submit_lookups(self, parts: Sequence[Sequence[int]]) -> list[int]:
        submit = self._adapter.submit_lookup_and_lock_task
        return [submit([self._keys[n] for n in part], _LAYOUT) for part in parts]

    def _await_stores(self, tasks: Sequence[int]) -> None:
        pending, event = set(tasks), self._adapter.get_store_event_fd()
        while pending and wait_eventfd(event, timeout=_TIMEOUT_S):
            pending -= self._adapter.pop_completed_store_tasks().keys()

    def _await_loads(self, tasks: Sequence[int]) -> dict[int, Bitmap]:
        return _await(tasks, self._adapter.get_load_event_fd(), self._adapter.query_load_result)

    def _await_lookups(self, tasks: Sequence[int]) -> dict[int, Bitmap]:
        return _await(tasks, self._adapter.get_lookup_and_lock_event_fd(), self._adapter.query_lookup_and_lock_result)

    def _is_right(self, number: int) -> bool:
        return torch.equal(self._sources[number].raw_data, self._targets[number].raw_data)


def _await(tasks: Sequence[int], event: int, query: Callable[[int], Bitmap | None]) -> dict[int, Bitmap]:
    """Return the result of every task, asking only after the adapter has signalled."""
    results: dict[int, Bitmap] = {}
    while len(results) < len(tasks) and wait_eventfd(event, timeout=_TIMEOUT_S):
        for task in tasks:
            if task not in results and (result := query(task)) is not None:
                results[task] = result
    return results


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    serve(LMCacheFS(sys.argv[1]))
