"""What ranks and their logs are called. Free of torch."""

from __future__ import annotations

from pathlib import Path

from hicache_storage.layout import Topology


def rank_names(topology: Topology) -> list[str]:
    """Return the names of all ranks, in the order in which they are counted."""
    return [f"tp{tp_rank}pp{pp_rank}" for tp_rank, pp_rank in topology.ranks()]


def log_path(folder: Path, name: str) -> Path:
    """Return where the rank *name* logs."""
    return folder / f"{name}.log"
