"""What Prometheus reads: the server's own counts and times, and the engine's counters by name and cause."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hicache_storage import telemetry
from hicache_storage.cli.serve.usage import Usage
from hicache_storage.middleware.metrics_text import prometheus_text

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "hicache"
_TIERS = ("device", "host", "store")
_NOW = "now"
"""What the engine's counters that are not counts begin with."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counts of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            f"{_PREFIX}_requests",
            "Prompts that ended, by what ended them.",
            ["endpoint", "outcome"],
            registry=self._registry,
        )
        self._prompt_tokens = Counter(f"{_PREFIX}_prompt_tokens", "Tokens of prompts.", registry=self._registry)
        self._new_tokens = Counter(f"{_PREFIX}_generated_tokens", "Tokens of answers.", registry=self._registry)
        self._cached = Counter(
            f"{_PREFIX}_cached_tokens",
            "Tokens of prompts that were not computed, by the tier that had them.",
            ["tier"],
            registry=self._registry,
        )
        for tier in _TIERS:
            self._cached.labels(tier)
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From when the prompt's tokens are known to the first new one."
        )
        self._duration = self._histogram(
            "request_duration_seconds", "From when the prompt's tokens are known to the answer's end."
        )
        self._running = Gauge(f"{_PREFIX}_requests_running", "Prompts that are served now.", registry=self._registry)
        self._engine_up = Gauge(f"{_PREFIX}_engine_up", "Whether the engine answered.", registry=self._registry)
        self.unrecorded = Counter(
            f"{_PREFIX}_requests_not_recorded", "Requests that the recorder could not write.", registry=self._registry
        )

    def first_token(self, endpoint: str, elapsed_s: float) -> None:
        """Count the first token of a request, *elapsed_s* after its tokens were known."""
        self._first_token.labels(endpoint).observe(elapsed_s)

    def ended(self, endpoint: str, outcome: str, usage: Usage, elapsed_s: float) -> None:
        """Count a request that ended *elapsed_s* after its tokens were known."""
        self._requests.labels(endpoint, outcome).inc()
        self._duration.labels(endpoint).observe(elapsed_s)
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._new_tokens.inc(usage.new_tokens)
        for tier, tokens in usage.cached_by_tier.items():
            self._cached.labels(tier).inc(tokens)

    def text(self, counters: Mapping[str, int] | None, *, running: int) -> bytes:
        """Return everything in Prometheus' text format.

        Args:
            counters: the engine's; None if it did not answer.
            running: requests that run now.
        """
        self._running.set(running)
        self._engine_up.set(counters is not None)
        engine = CollectorRegistry()
        engine.register(_EngineCounters(counters or {}))
        of_stores = prometheus_text(counters or {})
        return generate_latest(self._registry) + generate_latest(engine) + of_stores.encode()

    def _histogram(self, name: str, doc: str) -> Histogram:
        return Histogram(f"{_PREFIX}_{name}", doc, ["endpoint"], buckets=_SECONDS, registry=self._registry)


class _EngineCounters(Collector):
    """The engine's counters as metrics.

    ``read_failed.StoreFull`` becomes ``hicache_engine_read_failed_total{cause="StoreFull"}``, ``now.host_pages``, which
    goes up and down, the gauge ``hicache_engine_host_pages``. ``times.store_call.read.done.500``, how often it took how
    long, becomes part of the histogram ``hicache_engine_store_call_seconds{op="read",result="done"}``. What the layer
    ``metrics`` counted is left to `prometheus_text`.
    """

    def __init__(self, counters: Mapping[str, int]) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        families: dict[str, dict[str, int]] = defaultdict(dict)
        times: dict[str, dict[str, int]] = defaultdict(dict)
        for name, count in sorted(self._counters.items()):
            event, _, label = name.partition(".")
            if event == telemetry.STORE_METRICS:
                continue
            if event == telemetry.TIMES:
                timed, bound = label.rsplit(".", 1)
                times[timed][bound] = count
            elif event == _NOW:
                yield GaugeMetricFamily(_engine_name(label), f"The engine's {label} at this moment.", value=count)
            else:
                families[event][label] = count
        for event, counts in families.items():
            yield _family(event, counts)
        yield from _histograms(times)


def _family(event: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    labels = [] if set(counts) == {""} else ["tier"] if set(counts) <= set(_TIERS) else ["cause"]
    doc = f"The engine's counter {event}, of all ranks together."
    family = CounterMetricFamily(_engine_name(event), doc, labels=labels)
    for label, count in counts.items():
        family.add_metric([label] if labels else [], count)
    return family


def _histograms(times: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    """Yield a histogram for each first word of the names in *times*; the other two are the labels."""
    families: dict[str, HistogramMetricFamily] = {}
    for name, counts in times.items():
        event, op, result = name.split(".")
        doc = f"The engine's {event}, of all ranks together: how long each took."
        family = families.setdefault(
            event, HistogramMetricFamily(f"{_engine_name(event)}_seconds", doc, labels=["op", "result"])
        )
        below = list(accumulate(counts.get(f"{bound}", 0) for bound in telemetry.BOUNDS_MS))
        buckets = [(f"{bound / 1e3:g}", count) for bound, count in zip(telemetry.BOUNDS_MS, below, strict=True)]
        buckets.append(("+Inf", below[-1] + counts.get("more", 0)))
        family.add_metric([op, result], buckets, sum_value=counts["us"] / 1e6)
    yield from families.values()


def _engine_name(name: str) -> str:
    return f"{_PREFIX}_engine_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}"
