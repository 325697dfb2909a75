"""The checker's options. They are read from the environment: functions are decorated before any command line is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypeAlias

from hicache_storage.config import check_fields, from_mapping, option, parse_nbytes, resolve, whole_number

Mode: TypeAlias = Literal["off", "report", "stop"]
"""Whether ranks are compared, and what happens when they have diverged: one value for a flag."""


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
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, *, mode: Mode | None = None, log_folder: str | None = None
    ) -> Self:
        """Return what the environment says, and *mode* and *log_folder* where they are given.

        Raises:
            ConfigError: a value does not fit.
        """
        options, _ = resolve(cls, "rank consensus", [from_mapping(_given(mode, log_folder), "the caller")], environ)
        return options


def environment_of(mode: Mode | None, log_folder: str | None) -> dict[str, str]:
    """Return the variables that give *mode* and *log_folder* to processes that are to be started; None adds none."""
    return {f"HICACHE_RANK_CONSENSUS_{name.upper()}": value for name, value in _given(mode, log_folder).items()}


def _given(mode: Mode | None, log_folder: str | None) -> dict[str, str]:
    values = {"checker": None if mode is None else str(int(mode != "off")), "log_folder": log_folder}
    values["on_divergence"] = mode if mode in ("report", "stop") else None
    return {name: value for name, value in values.items() if value is not None}
