"""Asking whether objects are there: per key, in calls of 128 keys. Sizes do not matter; objects have 4 KiB."""

from __future__ import annotations

from benchmarks.rows import Row
from benchmarks.runner import Settings, measure
from benchmarks.subjects.factory import subjects_of
from benchmarks.workload import Workload


def file_exists(settings: Settings) -> list[Row]:
    workload = Workload(
        folder="", objects=1024, batch=128, threads=1, num_layers=1, kv_heads=1, head_dim=64, page_tokens=16
    )
    subjects = ["raw", "ours", "file_store", *subjects_of(settings.peers)]
    return measure(settings, "file_exists", "exists", workload, subjects)
