"""What ranks and their logs are called. Free of torch."""

from __future__ import annotations

from pathlib import Path

from hicache_storage.errors import RankFailure
from hicache_storage.layout import Topology


def rank_names(topology: Topology) -> list[str]:
    """Return the names of all ranks, in the order in which they are counted."""
    return [f"tp{tp_rank}pp{pp_rank}" for tp_rank, pp_rank in topology.ranks()]


def log_path(folder: Path, name: str) -> Path:
    """Return where the rank *name* logs."""
    return folder / f"{name}.log"


def reasons_by_name(failure: RankFailure, topology: Topology) -> str:
    """Return why which ranks failed: ``tp0pp0, tp1pp0: StoreUnavailable: connection refused``."""
    names = rank_names(topology)
    ranks_of: dict[str, list[str]] = {}
    for rank, why in sorted(failure.reasons.items()):
        ranks_of.setdefault(why, []).append(names[rank])
    return "; ".join(f"{', '.join(ranks)}: {why}" for why, ranks in ranks_of.items())
