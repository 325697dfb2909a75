"""What the layer `metrics` counts, for whoever adds it up."""

from __future__ import annotations

from collections import Counter

from hicache_storage.middleware import MetricsLayer, StoreMetrics
from hicache_storage.middleware.metrics_text import prometheus_text
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import ObjectWrite


def observed(name: str, *, seconds: float, nbytes: int) -> StoreMetrics:
    metrics = StoreMetrics(name)
    metrics.observe("read", seconds, ["hit", "hit", "miss"], nbytes)
    return metrics


def test_counts_of_several_ranks_add_up() -> None:
    total: Counter[str] = Counter()
    for seconds in (0.0001, 20.0):
        total.update(observed("file", seconds=seconds, nbytes=5).counts())

    text = prometheus_text(total)

    labels = 'backend="file",op="read"'
    for line in (
        f'hicache_store_requests_total{{{labels},result="hit"}} 4',
        f"hicache_store_bytes_total{{{labels}}} 10",
        f'hicache_store_seconds_bucket{{{labels},le="0.0005"}} 1',
        f'hicache_store_seconds_bucket{{{labels},le="10.0"}} 1',
        f'hicache_store_seconds_bucket{{{labels},le="+Inf"}} 2',
        f"hicache_store_seconds_sum{{{labels}}} 20.000100",
        f"hicache_store_seconds_count{{{labels}}} 2",
    ):
        assert f"{line}\n" in text


def test_backends_of_any_name_stay_apart() -> None:
    names = ["a.b", "a", 'quote"back\\slash\nline']
    counts: Counter[str] = Counter()
    for name in names:
        counts.update(observed(name, seconds=0.1, nbytes=1).counts())

    text = prometheus_text(counts)

    escaped = ["a.b", "a", r"quote\"back\\slash\nline"]
    assert [text.count(f'hicache_store_bytes_total{{backend="{name}",op="read"}} 1\n') for name in escaped] == [1, 1, 1]


def test_other_counters_are_left_out_and_nothing_is_said_of_nothing() -> None:
    assert prometheus_text({"pages_hit": 3, "times.store_call.read.done.5": 1}) == ""


def test_the_text_of_one_store_is_that_of_its_counts() -> None:
    store = MetricsLayer(MemoryStore())
    store.write_many([ObjectWrite("a", [b"12345"])])

    assert store.metrics.prometheus_text() == prometheus_text(store.metrics.counts())
