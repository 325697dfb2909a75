"""vLLM 0.33.0: the functions of its filesystem tier, ``vllm/v1/kv_offload/tiering/fs/io.py``, buffered.

The module is loaded by path: importing the vllm package needs CUDA. It uses the compiled
``vllm.fs_io_C`` of the wheel where that loads, else its own Python; `calls` says which. Each batch is
cut into one call per thread, as the tier's thread pool would be fed. File names follow its FileMapper:
``<root>_r0/<hhh>/<hh>_g0/<hash>.bin``. O_DIRECT, its default where it works, is off: the page cache is warm.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

from benchmarks.memory import Arena
from benchmarks.serve import serve
from benchmarks.subject import Subject, Verdict, timed
from benchmarks.workload import Workload, stripes


def load_io(path: Path) -> ModuleType:
    """Return vLLM's io.py, unchanged, from *path*."""
    spec = importlib.util.spec_from_file_location("vllm_fs_io", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_lookup() -> tuple[str, Callable[[list[str]], list[bool]]]:
    """Return the name and the function of what its FsAsyncLookupManager asks with."""
    try:
        from vllm.fs_io_C import batch_lookup  # noqa: PLC0415 - missing where the compiled part does not load
    except ImportError:
        return "os.path.exists", lambda paths: [os.path.exists(path) for path in paths]  # noqa: PTH110 - its own call
    return "vllm.fs_io_C.batch_lookup", batch_lookup


class VLLMFiles(Subject):
    version = "0.33.0"

    def __init__(self, path: Path) -> None:
        self._io = load_io(path)
        kind = "compiled" if self._io._HAS_FSIO_C else "Python"  # noqa: SLF001 - says which of its two paths is live
        lookup, self._lookup = find_lookup()
        self.calls = {
            "write": f"io.batch_store_block ({kind}), use_o_direct=False",
            "read": f"io.batch_load_block ({kind}), use_o_direct=False",
            "exists": lookup,
        }

    def prepare(self, workload: Workload) -> None:
        self._workload = workload
        self._content = workload.content()
        self._source = Arena(workload.objects, workload.object_nbytes)
        self._source.fill(self._content)
        self._target = Arena(workload.objects, workload.object_nbytes)
        self._root = Path(workload.folder) / "model_0123456789ab_r0"
        hashes = [workload.page_hash(number) for number in range(workload.objects)]
        self._paths = [f"{self._root}/{h[:3]}/{h[3:5]}_g0/{h}.bin" for h in hashes]
        self._pool = ThreadPoolExecutor(max(1, workload.threads - 1))
        self._batches = [stripes(batch, workload.threads) for batch in workload.batches()]

    def write(self) -> float:
        return timed(lambda: self._each_batch(self._store))

    def read(self) -> float:
        return timed(lambda: self._each_batch(self._load))

    def exists(self) -> float:
        parts = [[self._paths[n] for n in batch] for batch in self._workload.batches()]
        return timed(lambda: [self._lookup(part) for part in parts])

    def clear_memory(self) -> None:
        self._target.clear()

    def wrong_objects(self) -> int:
        return self._target.wrong(self._content)

    def wipe(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def store_some(self, numbers: Sequence[int]) -> None:
        self._store(numbers)

    def fetch_some(self, numbers: Sequence[int]) -> list[Verdict]:
        self.clear_memory()
        found = self._lookup([self._paths[n] for n in numbers])
        there = [number for number, is_there in zip(numbers, found, strict=True) if is_there]
        loaded, raised = len(there), False
        try:
            self._load(there)
        except OSError as error:
            loaded, raised = getattr(error, "num_succeeded", 0), True
        return [self._verdict(number, there, loaded, raised=raised) for number in numbers]

    def release(self) -> None:
        self._pool.shutdown()
        self._source.close()
        self._target.close()

    def _verdict(self, number: int, there: Sequence[int], loaded: int, *, raised: bool) -> Verdict:
        if number not in there:
            return Verdict.MISS
        if raised and there.index(number) >= loaded:
            return Verdict.ERROR
        size = self._workload.object_nbytes
        same = bytes(self._target.views[number]) == self._content[number * size : (number + 1) * size]
        return Verdict.RIGHT if same else Verdict.WRONG

    def _each_batch(self, work: Callable[[Sequence[int]], None]) -> None:
        for mine, *others in self._batches:
            helpers = [self._pool.submit(work, part) for part in others]
            work(mine)
            for helper in helpers:
                helper.result()

    def _store(self, numbers: Sequence[int]) -> None:
        size = self._workload.object_nbytes
        paths = [self._paths[n] for n in numbers]
        self._io.batch_store_block(paths, self._source.whole, [n * size for n in numbers], size, use_o_direct=False)

    def _load(self, numbers: Sequence[int]) -> None:
        size = self._workload.object_nbytes
        paths = [self._paths[n] for n in numbers]
        self._io.batch_load_block(paths, self._target.whole, [n * size for n in numbers], size, use_o_direct=False)


if __name__ == "__main__":
    serve(VLLMFiles(Path(sys.argv[1])))
