"""What all limits have in common: adjacent memory, and batches that are divided among threads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.memory import Arena
from benchmarks.subject import Subject, Verdict, timed
from benchmarks.workload import Workload, stripes


class Striped(Subject):
    """Moves each object as a whole or its second half; nothing is hashed or checked.

    The caller's thread is one of the threads, so one thread costs no hop and N threads cost N - 1 a batch.
    """

    def prepare(self, workload: Workload) -> None:
        self._workload = workload
        self._content = workload.content()
        self._source = Arena(workload.objects, workload.object_nbytes)
        self._source.fill(self._content)
        self._target = Arena(workload.objects, workload.object_nbytes)
        self._first_byte = 0
        self._pool = ThreadPoolExecutor(max(1, workload.threads - 1))
        self._batches = [stripes(batch, workload.threads) for batch in workload.batches()]

    def write(self) -> float:
        return timed(lambda: self._each_batch(self._write))

    def read(self) -> float:
        return self._read_from(0)

    def ranged(self) -> float:
        return self._read_from(self._workload.object_nbytes // 2)

    def clear_memory(self) -> None:
        self._target.clear()

    def wrong_objects(self) -> int:
        return self._target.wrong(self._content, self._first_byte)

    def store_some(self, numbers: Sequence[int]) -> None:
        self._write(numbers)

    def fetch_some(self, numbers: Sequence[int]) -> list[Verdict]:
        self._read(numbers, 0)
        size = self._workload.object_nbytes
        same = [bytes(self._target.views[n]) == self._content[n * size : (n + 1) * size] for n in numbers]
        return [Verdict.RIGHT if right else Verdict.WRONG for right in same]

    def release(self) -> None:
        self._pool.shutdown()
        self._source.close()
        self._target.close()

    @abstractmethod
    def _write(self, numbers: Sequence[int]) -> None:
        """Store these objects, one after the other; several threads do so at once."""

    @abstractmethod
    def _read(self, numbers: Sequence[int], first_byte: int) -> None:
        """Load these objects from *first_byte* on, each to its place."""

    def _read_from(self, first_byte: int) -> float:
        self._first_byte = first_byte
        return timed(lambda: self._each_batch(lambda numbers: self._read(numbers, first_byte)))

    def _each_batch(self, work: Callable[[Sequence[int]], None]) -> None:
        for mine, *others in self._batches:
            helpers = [self._pool.submit(work, part) for part in others]
            work(mine)
            for helper in helpers:
                helper.result()
