"""What the outcomes of a page's objects make of the page."""

from __future__ import annotations

from hicache_storage.types import Outcome, Status

_SEVERITY = {Status.HIT: 0, Status.ALREADY_THERE: 0, Status.STORED: 1, Status.MISS: 2, Status.FAILED: 3}


def worse(one: Outcome, other: Outcome) -> Outcome:
    """Return the outcome that decides for the page: a failure over a miss, stored over already there."""
    return other if _SEVERITY[other.status] > _SEVERITY[one.status] else one


def leading_successes(outcomes: list[Outcome]) -> int:
    """Return how many outcomes stand before the first miss or failure."""
    return next((index for index, outcome in enumerate(outcomes) if not outcome), len(outcomes))
