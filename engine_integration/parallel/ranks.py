"""All that one rank's controller needs of the others. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from hicache_storage.engine_integration.parallel.agree import Group, SingleRank
from hicache_storage.engine_integration.parallel.pp import StepSync


def _nobody() -> StepSync:
    return StepSync(SingleRank())


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks that take the same decisions, of all stages, as one of them reaches them. By default it is alone.

    Attributes:
        sync: for the scheduler's thread.
        backups, loads: all ranks, for the threads that agree on copies that have ended: a group for each.
        patience_s: how long this rank may be late with what the first stage goes by, until it fails.
    """

    sync: StepSync = field(default_factory=_nobody)
    backups: Group = SingleRank()  # noqa: RUF009 - it has no state
    loads: Group = SingleRank()  # noqa: RUF009 - as above
    patience_s: float = 120.0
