"""Moving bytes through the page cache: writes, verified reads, and what verifying costs.

Objects of 2 MiB: 32 layers, 2 KV heads of 128, 64 tokens, bfloat16; one object a page. Objects of 256 KiB: 4 layers of the same,
one object a page; and, for this project, the 32-layer page cut into 8 objects of 4 layers.
Every pass moves 128 MiB in calls of 64 objects.
"""

from __future__ import annotations

import os

from benchmarks.rows import Row
from benchmarks.runner import Settings, measure
from benchmarks.subjects.factory import subjects_of
from benchmarks.workload import Workload

_LAYERS_AND_OBJECTS = ((32, 64), (4, 512))


def file_write(settings: Settings) -> list[Row]:
    return _transfer(settings, "file_write", "write")


def file_read(settings: Settings) -> list[Row]:
    return _transfer(settings, "file_read", "read")


def checksum_cost(settings: Settings) -> list[Row]:
    """Compare verified reads with the file backend alone reading the same objects: hashing, checking, planning."""
    return [
        row
        for threads in _thread_counts()
        for layers, objects in _LAYERS_AND_OBJECTS
        for row in measure(
            settings,
            "checksum_cost",
            "read",
            Workload(folder="", num_layers=layers, objects=objects, threads=threads),
            ["file_store", "ours"],
            raw="file_store",
        )
    ]


def _transfer(settings: Settings, case: str, operation: str) -> list[Row]:
    rows: list[Row] = []
    for threads in _thread_counts():
        for layers, objects in _LAYERS_AND_OBJECTS:
            cut = ["ours_8_objects"] if layers < 32 else []
            peers = [name for name in subjects_of(settings.peers) if name != "sglang_v2"]
            workload = Workload(folder="", num_layers=layers, objects=objects, threads=threads)
            rows += measure(settings, case, operation, workload, ["raw", "ours", *cut, "file_store", *peers])
    return rows


def _thread_counts() -> list[int]:
    """Return one thread, as SGLang has, and one per core up to four."""
    return sorted({1, min(4, os.cpu_count() or 1)})
