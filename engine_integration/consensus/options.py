"""The checker's options. They are read from the environment: functions are decorated before any command line is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from hicache_storage.config import check_fields, option, parse_nbytes, resolve, whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusOptions:
    """What the checker does. ``HICACHE_RANK_CONSENSUS_CHECKER`` and so on set it, on every rank alike."""

    checker: bool = option(
        default=False,
        doc="whether decorated calls are recorded and compared",
        env=("SGLANG_ENABLE_RANK_CONSENSUS_CHECKER",),
    )
    on_divergence: Literal["report", "stop"] = option(
        "report", doc="stop: each rank's next recorded call raises RankFailure"
    )
    log_folder: Path | None = option(
        None, doc="where every rank writes all its entries, for hicache consensus-diff; no such logs without it"
    )
    log_nbytes: int = option(
        1 << 28,
        doc="size at which a log begins anew; the one before is kept, those before it are not",
        parse=parse_nbytes,
    )
    history: int = option(16, doc="entries before a divergence that are reported", parse=whole_number(0, 1000))

    def __post_init__(self) -> None:
        check_fields(self, "rank consensus")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Return what the environment says.

        Raises:
            ConfigError: a value does not fit.
        """
        options, _ = resolve(cls, "rank consensus", [], environ)
        return options
