"""SGLang's own controller with three storage backends on one filesystem: its own files, a bare plug-in, this project.

A prompt of 64 pages of 64 tokens: 2 MiB a page for MHA (32 layers, 2 heads of 128), 2.25 MiB for MLA (32 layers, rows of
576). The bare plug-in moves the host pool's bytes as they lie there and checks nothing, so what it stores fits one
topology and one layout; it is the limit of what a backend of one thread could reach.
"""

from __future__ import annotations

import os
from dataclasses import replace

from benchmarks.peers.environments import PEERS
from benchmarks.rows import Row
from benchmarks.runner import Settings, measure
from benchmarks.subjects.factory import PEER_COPIES
from benchmarks.workload import Workload

CASE = "sglang_dynamic"

_BATCH = 128
"""Pages of a call, as SGLang has it."""

_MHA = Workload(folder="", objects=64, batch=_BATCH)
_MLA = Workload(folder="", objects=64, batch=_BATCH, kv_heads=0, head_dim=576)
_POOLS = (("MHA", _MHA, "page_first_direct"), ("MHA", _MHA, "page_first"), ("MLA", _MLA, "page_first_direct"))


def sglang_dynamic(settings: Settings) -> list[Row]:
    """Compare stores and fetches of one prompt; the pool's kind and layout are part of the operation.

    Raises:
        ValueError: the peer sglang is not installed.
    """
    if not PEERS["sglang"].is_installed:
        raise ValueError(f"{CASE} runs in the peer's environment: python -m benchmarks peers install sglang")
    rows: list[Row] = []
    for kind, shape, layout in _POOLS:
        for threads in sorted({1, min(4, os.cpu_count() or 1)}):
            workload = replace(shape, host_layout=layout, threads=threads)
            for operation, name in (("write", "set"), ("read", "get")):
                found = measure(settings, CASE, operation, workload, PEER_COPIES[CASE], raw="sglang_bare")
                rows += [replace(row, operation=f"{name} {kind} {layout}") for row in found]
    return rows
