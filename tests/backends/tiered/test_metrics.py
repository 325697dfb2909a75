"""What the layers `metrics` around the parts of a tiered store count."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hicache_storage import open_store
from hicache_storage.middleware import store_counts
from hicache_storage.middleware.metrics_text import prometheus_text
from hicache_storage.types import ObjectWrite, RangeRead, Status
from tests.backends.tiered.setup import BODY

METRICS = {"metrics": True}


def folders(tmp_path: Path, *middleware: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a tiered store of a folder for each of *middleware*."""
    stores = [
        {"backend": "file", "path": str(tmp_path / f"{at}"), "middleware": layers}
        for at, layers in enumerate(middleware)
    ]
    return {"stores": stores, "promote": "none"}


def test_two_folders_are_counted_apart(tmp_path: Path) -> None:
    with open_store("tiered", folders(tmp_path, METRICS, METRICS)) as store:
        store.write_many([ObjectWrite(key, [BODY]) for key in ("x", "y")])
        with open_store("file", {"path": str(tmp_path / "0")}) as upper:
            assert upper.delete("x")
        read = store.read_many([RangeRead(key, 0, [bytearray(len(BODY))], len(BODY)) for key in ("x", "y")])

        lines = prometheus_text(store_counts(store)).splitlines()

    assert [outcome.status for outcome in read] == [Status.HIT] * 2
    assert sorted(line for line in lines if "_total{" in line) == sorted(
        f'hicache_store_{name}_total{{backend="file",part="{part}",op="{op}"{result}}} {count}'
        for name, part, op, result, count in [
            ("requests", 0, "write", ',result="stored"', 2),
            ("requests", 1, "write", ',result="stored"', 2),
            ("requests", 0, "read", ',result="hit"', 1),
            ("requests", 0, "read", ',result="miss"', 1),
            ("requests", 1, "read", ',result="hit"', 1),
            ("bytes", 0, "write", "", 2 * len(BODY)),
            ("bytes", 1, "write", "", 2 * len(BODY)),
            ("bytes", 0, "read", "", len(BODY)),
            ("bytes", 1, "read", "", len(BODY)),
        ]
    )
    for part in range(2):
        for op in ("read", "write"):
            assert f'hicache_store_seconds_count{{backend="file",part="{part}",op="{op}"}} 1' in lines


def test_the_layer_around_the_whole_and_those_around_its_parts_are_counted_apart(tmp_path: Path) -> None:
    options = folders(tmp_path, {}, {**METRICS, "retry_attempts": 2}) | {
        "middleware": {**METRICS, "breaker_failures": 3}
    }
    with open_store("tiered", options) as store:
        store.exists_many(["a", "b", "c"])

        counts = store_counts(store)

    assert {name: count for name, count in counts.items() if ".requests." in name} == {
        "store_metrics.requests.exists.miss.tiered": 3,
        "store_metrics.part.1.requests.exists.miss.file": 3,
    }


def test_the_copies_that_a_part_takes_are_counted(tmp_path: Path) -> None:
    options = folders(tmp_path, METRICS, METRICS) | {"write": "first_then_background", "drain_s": 60}
    with open_store("tiered", options) as store:
        store.write("x", [BODY])

    assert store_counts(store)["store_metrics.part.1.requests.write.stored.file"] == 1
