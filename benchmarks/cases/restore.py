"""A prompt restored from L3 by the controller, against the backend alone reading the same objects.

Pages and objects as in `benchmarks.cases.transfer`: 64 pages of 2 MiB, 512 of 256 KiB, in batches of 64 pages.
"""

from __future__ import annotations

import os

from benchmarks.rows import Row
from benchmarks.runner import Settings, measure
from benchmarks.workload import Workload


def restore(settings: Settings) -> list[Row]:
    rows: list[Row] = []
    for threads in sorted({1, min(4, os.cpu_count() or 1)}):
        for layers, objects in ((32, 64), (4, 512)):
            workload = Workload(folder="", num_layers=layers, objects=objects, threads=threads)
            rows += measure(
                settings, "restore", "read", workload, ["file_store", "ours", "ours_restore"], raw="file_store"
            )
    return rows
