"""Pages between pools and page_unified order, beside one plain copy of the same bytes.

Pages have 64 tokens of bfloat16: 60 layers of 8 heads of 128 (15.7 MB), 30 layers of 3 heads of 64 (1.5 MB), and 61 layers of
latent rows of 576 (4.5 MB). From 1 to 512 pages move in one call, as far as they stay below 1.2 GB. torch has one thread, and
everything lies in memory of the CPU; `benchmarks/gpu_check.py` is for a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.rows import Row
from benchmarks.runner import Settings, measure
from benchmarks.subjects.factory import PEER_COPIES, copies_of
from benchmarks.workload import Workload

_SHAPES = (
    (Workload(folder="", objects=1, num_layers=60, kv_heads=8, head_dim=128), (1, 16, 64), 2),
    (Workload(folder="", objects=1, num_layers=30, kv_heads=3, head_dim=64), (1, 64, 512), 1),
    (Workload(folder="", objects=1, num_layers=61, kv_heads=0, head_dim=576), (1, 64, 256), 0),
)
"""The shape, how many pages, and heads of a group of the subject with groups."""

_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")


def gather_scatter(settings: Settings) -> list[Row]:
    """Compare gather and scatter between a pool of per-layer tensors and pages."""
    rows: list[Row] = []
    names = ("gather", "scatter")
    for shape, counts, group_heads in _SHAPES:
        for pages in counts[:1] if settings.small else counts:
            workload = replace(shape, objects=pages, batch=pages)
            peers = copies_of(settings.peers, PEER_COPIES["gather_scatter"])
            rows += _both_ways(settings, "gather_scatter", workload, ["tensor_copy", "ours_kernels", *peers], names)
            if group_heads:
                grouped = replace(workload, group_heads=group_heads)
                found = _both_ways(settings, "gather_scatter", grouped, ["tensor_copy", "ours_kernels"], names)
                rows += [replace(row, subject="ours_kernels_groups") for row in found if row.subject != "tensor_copy"]
    return rows


def host_relayout(settings: Settings) -> list[Row]:
    """Compare copies between an engine's host pool and pages; the layout's name is part of the operation."""
    rows: list[Row] = []
    names = ("to pages", "from pages")
    for (shape, _, group_heads), pages in zip(_SHAPES[:2], (16, 128), strict=True):
        for layout in _LAYOUTS:
            workload = replace(shape, objects=pages, batch=pages, host_layout=layout, group_heads=group_heads)
            peers = copies_of(settings.peers, PEER_COPIES["host_relayout"])
            found = _both_ways(settings, "host_relayout", workload, ["tensor_copy", "ours_relayout", *peers], names)
            rows += [replace(row, operation=f"{layout} {row.operation}") for row in found]
    return rows


def _both_ways(
    settings: Settings, case: str, workload: Workload, subjects: Sequence[str], names: tuple[str, str]
) -> list[Row]:
    """Return rows of both directions, which are called *names*: pages filled from the pool, and the pool from pages."""
    return [
        replace(row, operation=name)
        for operation, name in zip(("write", "read"), names, strict=True)
        for row in measure(settings, case, operation, workload, subjects, raw="tensor_copy")
    ]
