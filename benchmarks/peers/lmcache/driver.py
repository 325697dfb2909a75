"""LMCache 0.5.6: its L2 adapters ``fs`` (Python, aiofiles), ``fs_native`` and ``resp`` (C++), and ``s3`` (AWS CRT).

They are called as `lmcache bench l2` does: keys and memory objects come from LMCache's own benchmark
(`l2_adapter_bench.data`), each batch is submitted as one task per thread and awaited on the adapter's event
descriptor. Arguments: the adapter, then for ``resp`` the port on loopback, for ``s3`` endpoint, bucket and keys.
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
from lmcache.v1.distributed.l2_adapters.resp_l2_adapter import RESPL2AdapterConfig, _create_resp_l2_adapter

from benchmarks.serve import serve
from benchmarks.subject import Subject, SubjectFailed, Verdict, timed
from benchmarks.workload import Workload, stripes

_LAYOUT = {0: MemoryLayoutDesc(shapes=[torch.Size([1])], dtypes=[torch.uint8])}
_TIMEOUT_S = 120.0


class Bitmap(Protocol):
    """LMCache's answer for a list of keys: bit n is set if key n was found or loaded."""

    def test(self, position: int, /) -> bool: ...


class StoreResult(Protocol):
    """LMCache's answer for a task that stores."""

    def is_successful(self) -> bool: ...


def open_adapter(kind: str, server: Sequence[str], folder: str, threads: int) -> L2AdapterInterface:
    """Return the adapter of *kind*, buffered I/O, with its defaults for everything else."""
    match kind:
        case "fs":
            return FSL2Adapter(FSL2AdapterConfig(base_path=folder))
        case "fs_native":
            return _create_fs_native_l2_adapter(FSNativeL2AdapterConfig(base_path=folder, num_workers=threads))
        case "resp":
            config = RESPL2AdapterConfig(host="127.0.0.1", port=int(server[0]), num_workers=threads)
            return _create_resp_l2_adapter(config)
    return _open_s3(server, threads)


def _open_s3(server: Sequence[str], threads: int) -> L2AdapterInterface:
    """Return the S3 adapter. It knows no bucket: that is the first word of its keys, see `model_name`."""
    from lmcache.v1.distributed.l2_adapters.s3_l2_adapter import S3L2Adapter, S3L2AdapterConfig  # noqa: PLC0415 - AWS CRT

    endpoint_url, _, access_key_id, secret_access_key = server
    return S3L2Adapter(
        S3L2AdapterConfig(
            s3_endpoint=endpoint_url.removeprefix("http://"),
            s3_region="us-east-1",
            s3_num_io_threads=threads,
            s3_prefer_http2=False,
            disable_tls=True,
            aws_access_key_id=access_key_id,
            aws_secret_access_key=secret_access_key,
        )
    )


def model_name(kind: str, server: Sequence[str]) -> str:
    """Return the model in every key. For S3 it puts the bucket into the path: a server on loopback has no host per bucket."""
    return f"{server[1]}/bench-model" if kind == "s3" else "bench-model"


_NAMES = {
    "fs": "FSL2Adapter",
    "fs_native": "NativeConnectorL2Adapter(LMCacheFSClient)",
    "resp": "NativeConnectorL2Adapter(LMCacheRedisClient)",
    "s3": "S3L2Adapter",
}


class LMCache(Subject):
    def __init__(self, kind: str, server: Sequence[str] = ()) -> None:
        self._kind = kind
        self._server = server
        self.version = version("lmcache")
        name = _NAMES[kind]
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
        self._keys = make_object_keys(workload.objects, model_name(self._kind, self._server))
        self._adapter = self._open()
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
        if self._server:
            self._adapter.delete(self._keys)
            (found,) = self._await_lookups(self._submit_lookups([[0]])).values()
            if found.test(0):
                raise SubjectFailed("objects are still there after they were deleted")
            return
        self._adapter.close()
        for path in Path(self._workload.folder).rglob("*"):
            if path.is_file():
                path.unlink()
        self._adapter = self._open()

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

    def _open(self) -> L2AdapterInterface:
        return open_adapter(self._kind, self._server, self._workload.folder, self._workload.threads)

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
        results: dict[int, StoreResult] = {}
        event = self._adapter.get_store_event_fd()
        while len(results) < len(tasks) and wait_eventfd(event, timeout=_TIMEOUT_S):
            results |= self._adapter.pop_completed_store_tasks()
        if len(results) < len(tasks) or not all(result.is_successful() for result in results.values()):
            raise SubjectFailed(f"{len(results)} of {len(tasks)} tasks ended: {results}")

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
    serve(LMCache(sys.argv[1], sys.argv[2:]))
