"""What the operations of a store came to and how long they took, for Prometheus and for people."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from hicache_storage.errors import StoreError
from hicache_storage.middleware.layer import Layer, built_once
from hicache_storage.middleware.metrics_text import BUCKETS_S, PART, prometheus_text
from hicache_storage.store import ObjectStore
from hicache_storage.telemetry import STORE_METRICS
from hicache_storage.types import (
    ObjectWrite,
    Outcome,
    RangeRead,
    ReadableBuffer,
    Status,
    WritableBuffer,
    WriteResult,
    nbytes_of,
)

T = TypeVar("T")
R = TypeVar("R", RangeRead, ObjectWrite, str)


class StoreMetrics:
    """Counters and latency histograms of one store. Thread-safe."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._lock = threading.Lock()
        self._results: Counter[tuple[str, str]] = Counter()
        self._nbytes: Counter[str] = Counter()
        self._latency: dict[str, list[int]] = {}
        self._latency_sum_s: Counter[str] = Counter()

    def observe(self, op: str, seconds: float, results: Sequence[str], nbytes: int) -> None:
        """Count one call of *op*: how long it took, what became of each request, how many bytes it moved."""
        with self._lock:
            buckets = self._latency.setdefault(op, [0] * (len(BUCKETS_S) + 1))
            buckets[bisect_left(BUCKETS_S, seconds)] += 1
            self._latency_sum_s[op] += seconds  # type: ignore[assignment]  # a Counter adds up floats as well
            self._nbytes[op] += nbytes
            self._results.update((op, result) for result in results)

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Return per operation: calls, seconds and bytes in all, and each result's count."""
        with self._lock:
            shown: dict[str, dict[str, float]] = {}
            for op, buckets in self._latency.items():
                shown[op] = {"calls": sum(buckets), "seconds": self._latency_sum_s[op], "nbytes": self._nbytes[op]}
                shown[op] |= {result: count for (name, result), count in self._results.items() if name == op}
            return shown

    def counts(self, part: str = "") -> dict[str, int]:
        """Return everything as numbers that those of other ranks and stores may be added to, name by name.

        Behind ``store_metrics.`` they are ``requests.<op>.<result>.<backend>``, ``bytes.<op>.<backend>``, and
        ``seconds.<op>.<n>.<backend>``, the calls in the n-th bucket of `BUCKETS_S` or behind the last of them, with the
        microseconds of all as ``seconds.<op>.us.<backend>``. Those of a part of another store have ``part.<part>.`` in front.

        Args:
            part: the part's name, without dots; none for a store that is no part.
        """
        with self._lock:
            found = {f"requests.{op}.{result}": count for (op, result), count in self._results.items()}
            found |= {f"bytes.{op}": nbytes for op, nbytes in self._nbytes.items()}
            for op, buckets in self._latency.items():
                found |= {f"seconds.{op}.{at}": count for at, count in enumerate(buckets)}
                found[f"seconds.{op}.us"] = round(self._latency_sum_s[op] * 1e6)
        prefix = f"{STORE_METRICS}.{PART}.{part}" if part else STORE_METRICS
        return {f"{prefix}.{name}.{self.backend}": count for name, count in found.items() if count}

    def prometheus_text(self) -> str:
        """Return everything in Prometheus' text format."""
        return prometheus_text(self.counts())


class MetricsLayer(Layer):
    """Counts every operation in `metrics`: results are statuses and, for failures, the error's class."""

    def __init__(self, inner: ObjectStore, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(inner)
        self.metrics = StoreMetrics(inner.name)
        self._clock = clock

    def single(self, op: str, key: str, call: Callable[[], T]) -> T:
        return self._timed(op, call, 0)

    def batch(self, op: str, requests: Sequence[R], call: Callable[[Sequence[R]], list[Outcome]]) -> list[Outcome]:
        start = self._clock()
        listed = built_once(op, requests)
        results, moved = ["failed"] * len(requests), 0
        try:
            outcomes = call(listed)
            results = [_result_of(outcome) for outcome in outcomes]
            if op in ("read", "write"):
                moved = sum(_nbytes_of(listed[index]) for index, outcome in enumerate(outcomes) if outcome)
            return outcomes
        except StoreError as error:
            results = [type(error).__name__] * len(requests)
            raise
        finally:
            self.metrics.observe(op, self._clock() - start, results, moved)

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        return self._timed("write", lambda: self.inner.write(key, parts), sum(map(nbytes_of, parts)))

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        nbytes = sum(map(nbytes_of, targets))
        return self._timed(
            "read", lambda: self.inner.read_into(key, offset, targets, object_nbytes=object_nbytes), nbytes
        )

    def _timed(self, op: str, call: Callable[[], T], nbytes: int) -> T:
        start = self._clock()
        result, moved = "failed", 0
        try:
            answer = call()
            result, moved = _name_of(answer), nbytes if answer else 0
            return answer
        except StoreError as error:
            result = type(error).__name__
            raise
        finally:
            self.metrics.observe(op, self._clock() - start, [result], moved)


def _result_of(outcome: Outcome) -> str:
    return type(outcome.error).__name__ if outcome.error is not None else outcome.status.value


def _name_of(answer: object) -> str:
    if isinstance(answer, WriteResult):
        return answer.value
    return Status.HIT.value if answer else Status.MISS.value


def _nbytes_of(request: RangeRead | ObjectWrite | str) -> int:
    return 0 if isinstance(request, str) else request.nbytes
