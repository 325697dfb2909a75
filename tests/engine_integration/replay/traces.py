"""Traces written for one test, the one that ships, and what can be reused of a trace, counted in another way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hicache_storage.cli.replay.arguments import shipped_trace
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.replay import Replay, ReplayOptions, Report, TierSize, Trace
from hicache_storage.layout import KVShape, Topology
from hicache_storage.store import ObjectStore

SLICE = shipped_trace()
FLEET = tuple(map(Topology.parse, ("tp4pp2", "tp2pp1", "tp8pp1", "tp1pp4")))
SHAPE = KVShape.mha(num_layers=32, num_kv_heads=8, head_dim=128, dtype="bfloat16", page_tokens=64)
EAGER = TierOptions(prefetch_threshold_tokens=0, load_back_threshold_tokens=0)
"""L2 and L3 are used for every page that they have."""


def write_trace(path: Path, *requests: tuple[int, Sequence[int]]) -> Path:
    """Write requests of so many tokens with these block ids, a second apart."""
    lines = [
        {"timestamp": 1000 * number, "input_length": tokens, "output_length": 1, "hash_ids": list(ids)}
        for number, (tokens, ids) in enumerate(requests)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def reusable_blocks(path: Path) -> int:
    """Return how many full blocks of the prompts were the same blocks of an earlier prompt: equal ids mean equal prefixes."""
    known: set[int] = set()
    reusable = 0
    for line in map(json.loads, path.read_text().splitlines()):
        full = line["hash_ids"][: line["input_length"] // 512]
        reusable += next((at for at, block in enumerate(full) if block not in known), len(full))
        known.update(full)
    return reusable


def replayed(options: ReplayOptions, path: Path = SLICE, *, backend: ObjectStore | None = None) -> Report:
    """Return what a whole replay has found."""
    with Replay(Trace(path), options, backend=backend) as replay:
        for served in replay.run():
            assert served.cached is None or served.cached.total <= served.reusable
        return replay.report()


def tokens(count: int) -> TierSize:
    return TierSize.parse(f"{count}tokens")
