"""The connector's counts on their way to vLLM's log and ``/metrics``."""

from __future__ import annotations

from collections import Counter

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from hicache_storage.telemetry import Counters

_METRIC = "vllm:hicache_events"


class EventCounts(KVConnectorStats):  # type: ignore[misc] # vLLM ships no types
    """How often each event of `telemetry` happened, in ``data``; of several workers the sum."""

    def reset(self) -> None:
        self.data: dict[str, int] = {}

    def aggregate(self, other: EventCounts) -> EventCounts:
        return EventCounts(data=dict(Counter(self.data) + Counter(other.data)))

    def reduce(self) -> dict[str, int]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


class FreshCounts:
    """What `Counters` have counted since the last time. For one thread."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._told: dict[str, int] = {}

    def take(self) -> EventCounts | None:
        """Return the counts that are new, None if there are none."""
        now = self._counters.snapshot()
        fresh = {name: count - self._told.get(name, 0) for name, count in now.items() if count != self._told.get(name)}
        self._told = now
        return EventCounts(data=fresh) if fresh else None


class EventMetrics(KVConnectorPromMetrics):  # type: ignore[misc] # vLLM ships no types
    """One Prometheus counter, ``vllm:hicache_events_total``, with the event as a label."""

    def __init__(
        self,
        vllm_config: object,
        metric_types: dict[object, object],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._events = self._counter_cls(
            name=_METRIC,
            documentation="Events of the HiCache connector, by the names of hicache_storage.telemetry, all workers together.",
            labelnames=[*labelnames, "event"],
        )

    def observe(self, transfer_stats_data: dict[str, int], engine_idx: int = 0) -> None:
        for event, count in transfer_stats_data.items():
            self._events.labels(*self.per_engine_labelvalues[engine_idx], event).inc(count)
