"""What several stores said about one object, as one answer; and what they can do, as one store."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_storage.errors import CorruptObject, RangeError, Unsupported
from hicache_storage.types import Capabilities, Outcome, Status

_DAMAGE = (CorruptObject, RangeError)


def best(answers: Sequence[Outcome]) -> Outcome:
    """Return the first success; without one, what weighs most.

    A store that could not find out weighs more than one whose object is damaged, since it may hold a good
    one; a damaged object weighs more than a miss. A store that cannot hold such a key does not count
    unless none can.
    """
    return next(filter(None, answers), None) or weightiest(answers)


def weightiest(answers: Sequence[Outcome]) -> Outcome:
    """Return what weighs most, the first among equals: any failure more than a success, that more than a miss."""
    return max(answers, key=_weight)


def lacks(answer: Outcome) -> bool:
    """Return whether the store answered and could take the object: it is not there, or it is damaged there."""
    return answer.status is Status.MISS or is_damaged(answer)


def is_damaged(answer: Outcome) -> bool:
    """Return whether the store found its copy of the object to be no good."""
    return isinstance(answer.error, _DAMAGE)


def _weight(answer: Outcome) -> int:
    if isinstance(answer.error, Unsupported):
        return 0
    if answer.error is None:
        return 2 if answer else 1
    return 3 if is_damaged(answer) else 4


def combined(tiers: Sequence[Capabilities], *, written_to_all: bool) -> Capabilities:
    """Return what the stores can do as one: a limit is that of the store with the widest one.

    Args:
        written_to_all: every write goes to every store, so that one durable or shared store is enough.
    """
    durable = [tier.durable for tier in tiers]
    shared = [tier.shared for tier in tiers]
    return Capabilities(
        ranges=all(tier.ranges for tier in tiers),
        listing=all(tier.listing for tier in tiers),
        durable=any(durable) if written_to_all else all(durable),
        shared=any(shared) if written_to_all else all(shared),
        ttl=any(tier.ttl for tier in tiers),
        keeps_deadline=all(tier.keeps_deadline for tier in tiers),
        memory_registration=any(tier.memory_registration for tier in tiers),
        max_object_nbytes=_widest([tier.max_object_nbytes for tier in tiers]),
        max_key_nbytes=_widest([tier.max_key_nbytes for tier in tiers]),
    )


def _widest(limits: Sequence[int | None]) -> int | None:
    known = [limit for limit in limits if limit is not None]
    return max(known) if len(known) == len(limits) else None
