"""What the layer ``metrics`` has counted, in Prometheus' text format: of one store, or of many added up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from hicache_storage.telemetry import STORE_METRICS

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

PART = "part"
"""What stands in front of the name of a part of a store, in names of counts."""

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def prometheus_text(counts: Mapping[str, int]) -> str:
    """Return what of *counts* the layer has counted; other names are left out, and so is a family without a line.

    Args:
        counts: as `StoreMetrics.counts` names them.
    """
    requests: list[str] = []
    nbytes: list[str] = []
    seconds: dict[str, dict[str, int]] = defaultdict(dict)
    for name, count in sorted(counts.items()):
        if not name.startswith(f"{STORE_METRICS}."):
            continue
        _, kind, rest = name.split(".", 2)
        part = ""
        if kind == PART:
            part, kind, rest = rest.split(".", 2)
        if kind == "bytes":
            op, backend = rest.split(".", 1)
            nbytes.append(f"hicache_store_bytes_total{{{_labels(backend, part, op)}}} {count}")
            continue
        # A backend's name may have dots in it, so it stands at the end.
        op, which, backend = rest.split(".", 2)
        if kind == "requests":
            requests.append(f'hicache_store_requests_total{{{_labels(backend, part, op)},result="{which}"}} {count}')
        else:
            seconds[_labels(backend, part, op)][which] = count
    histograms = [line for labels, of_op in seconds.items() for line in _histogram(labels, of_op)]
    return (
        _family("requests_total", "counter", "Requests by operation and result.", requests)
        + _family("bytes_total", "counter", "Bytes read or written.", nbytes)
        + _family("seconds", "histogram", "Time of a call; a batch is one call.", histograms)
    )


def _family(name: str, kind: str, doc: str, lines: list[str]) -> str:
    head = [f"# HELP hicache_store_{name} {doc}", f"# TYPE hicache_store_{name} {kind}"]
    return "\n".join([*head, *lines, ""]) if lines else ""


def _histogram(labels: str, counts: Mapping[str, int]) -> list[str]:
    lines, below = [], 0
    for at, limit in enumerate([*map(str, BUCKETS_S), "+Inf"]):
        below += counts.get(f"{at}", 0)
        lines.append(f'hicache_store_seconds_bucket{{{labels},le="{limit}"}} {below}')
    lines.append(f"hicache_store_seconds_sum{{{labels}}} {counts.get('us', 0) / 1e6:.6f}")
    lines.append(f"hicache_store_seconds_count{{{labels}}} {below}")
    return lines


def _labels(backend: str, part: str, op: str) -> str:
    of_part = f'part="{part}",' if part else ""
    return f'backend="{backend.translate(_ESCAPES)}",{of_part}op="{op}"'
