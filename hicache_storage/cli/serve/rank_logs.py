"""Where the ranks of a server log, so that what the rank consensus checker finds can be read afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from hicache_storage.engine_integration.consensus.options import ConsensusOptions
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig


def with_rank_logs(
    engine: EngineConfig,
    folder: Path | None,
    tell: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
) -> tuple[EngineConfig, Path | None]:
    """Return the engine and its log folder, with a place for the logs that are compared if they are written at all.

    Args:
        folder: chosen for the logs of the ranks. Where the checker is on and it is None, a new folder is made and
            stays, since what the checker finds is told there alone.
        tell: gets a line that names the folders.
    """
    options = ConsensusOptions.from_environment(
        environ, mode=engine.rank_consensus, log_folder=engine.rank_consensus_log_folder
    )
    if not options.checker:
        return engine, folder
    logs = folder or Path(tempfile.mkdtemp(prefix="hicache-ranks-"))
    entries = options.log_folder or logs
    tell(f"rank consensus: {options.on_divergence}; ranks log to {logs}, what is compared to {entries}")
    return replace(engine, rank_consensus_log_folder=str(entries)), logs
