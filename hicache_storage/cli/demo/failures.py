"""What went wrong between an engine and its store, as the engine's counters tell it."""

from __future__ import annotations

from collections.abc import Mapping

from hicache_storage import errors, telemetry
from hicache_storage.cli import exit_codes
from hicache_storage.errors import StoreError

_KINDS = (
    telemetry.READ_FAILED,
    telemetry.WRITE_FAILED,
    telemetry.LOOKUP_FAILED,
    telemetry.PREFETCH_FAILED,
    telemetry.WRITEBACK_FAILED,
)


def failures_of(counters: Mapping[str, int]) -> dict[str, int]:
    """Return how often each kind of failure came from each cause: ``read_failed.CorruptObject`` and so on."""
    return {name: count for name, count in counters.items() if count and name.partition(".")[0] in _KINDS}


def status_of(failures: Mapping[str, int]) -> int:
    """Return the exit status that stands for the worst of *failures*, that of success if there are none."""
    return max((exit_codes.of_error(_error(_cause(name))) for name in failures), default=exit_codes.DONE)


def in_words(failures: Mapping[str, int]) -> str:
    """Return *failures* in one line."""
    return ", ".join(f"{name} {count}x" for name, count in sorted(failures.items()))


def causes_of(failures: Mapping[str, int]) -> str:
    """Return the names of what failed, each once."""
    return ", ".join(sorted({_cause(name) for name in failures}))


def _cause(name: str) -> str:
    return name.partition(".")[2]


def _error(cause: str) -> StoreError:
    kind: object = vars(errors).get(cause)
    return kind("") if isinstance(kind, type) and issubclass(kind, StoreError) else StoreError("")
