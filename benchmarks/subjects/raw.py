"""The physical limit: open, pwritev or preadv, close, from as many threads as the others have."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.memory import Arena
from benchmarks.subject import Subject, Verdict, timed
from benchmarks.workload import Workload, stripes


class RawFiles(Subject):
    """One file per object in one flat folder; no checksum, no rename, no eviction.

    The caller's thread is one of the threads, so one thread costs no hop and N threads cost N - 1 a batch.
    """

    def __init__(self) -> None:
        self.calls = {
            "write": "os.open(O_CREAT|O_EXCL), os.pwritev, os.close",
            "read": "os.open, os.preadv, os.close",
            "exists": "os.stat",
        }

    def prepare(self, workload: Workload) -> None:
        self._workload = workload
        self._content = workload.content()
        self._source = Arena(workload.objects, workload.object_nbytes)
        self._source.fill(self._content)
        self._target = Arena(workload.objects, workload.object_nbytes)
        folder = Path(workload.folder)
        self._paths = [str(folder / f"{workload.page_hash(number)}.raw") for number in range(workload.objects)]
        self._pool = ThreadPoolExecutor(max(1, workload.threads - 1))
        self._batches = [stripes(batch, workload.threads) for batch in workload.batches()]

    def write(self) -> float:
        return timed(lambda: self._each_batch(self._write))

    def read(self) -> float:
        return timed(lambda: self._each_batch(self._read))

    def exists(self) -> float:
        return timed(lambda: [os.stat(path) for path in self._paths])  # noqa: PTH116 - the plain call is the limit

    def clear_memory(self) -> None:
        self._target.clear()

    def wrong_objects(self) -> int:
        return self._target.wrong(self._content)

    def wipe(self) -> None:
        for path in self._paths:
            Path(path).unlink(missing_ok=True)

    def store_some(self, numbers: Sequence[int]) -> None:
        self._write(numbers)

    def fetch_some(self, numbers: Sequence[int]) -> list[Verdict]:
        self._read(numbers)
        size = self._workload.object_nbytes
        same = [bytes(self._target.views[n]) == self._content[n * size : (n + 1) * size] for n in numbers]
        return [Verdict.RIGHT if right else Verdict.WRONG for right in same]

    def release(self) -> None:
        self._pool.shutdown()
        self._source.close()
        self._target.close()

    def _each_batch(self, work: Callable[[Sequence[int]], None]) -> None:
        for mine, *others in self._batches:
            helpers = [self._pool.submit(work, part) for part in others]
            work(mine)
            for helper in helpers:
                helper.result()

    def _write(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            file = os.open(self._paths[number], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            os.pwritev(file, [self._source.views[number]], 0)
            os.close(file)

    def _read(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            file = os.open(self._paths[number], os.O_RDONLY)
            os.preadv(file, [self._target.views[number]], 0)
            os.close(file)
