"""Compares rank logs after the fact: every rank with all others, TP peers within a stage, stages at one TP position.

One pass, all logs side by side by the numbers of their entries; memory does not grow with the logs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hicache_storage.engine_integration.consensus.divergence import Differs, Divergence, what_differs
from hicache_storage.engine_integration.consensus.entry import Entry, Rank


@dataclass(slots=True)
class Comparison:
    """Some ranks, and the first entry on which they differ.

    Attributes:
        divergence: None if all that was compared is equal. Nothing is compared behind the first entry on which any
            two ranks differ: whoever has parted there does other things afterwards.
    """

    name: str
    ranks: Sequence[Rank]
    divergence: Divergence | None = None


@dataclass(slots=True)
class _Log:
    """One rank's entries, in ascending order. Which numbers are there is up to whoever wrote the file."""

    entries: Iterator[Entry]
    head: Entry | None = field(init=False)

    def __post_init__(self) -> None:
        self.head = next(self.entries, None)

    def skip_to(self, number: int) -> None:
        while self.head is not None and self.head.number < number:
            self.head = next(self.entries, None)


def comparisons(ranks: Sequence[Rank]) -> list[Comparison]:
    """Return what is compared of *ranks*: all of them, then the parts of them that have two at least."""
    stages = sorted({rank.pp_rank for rank in ranks})
    positions = sorted({rank.tp_rank for rank in ranks})
    groups = [
        Comparison("all ranks", sorted(ranks)),
        *(
            Comparison(f"TP peers of pp{stage}", [one for one in sorted(ranks) if one.pp_rank == stage])
            for stage in stages
        ),
        *(
            Comparison(f"tp{position} of all stages", [one for one in sorted(ranks) if one.tp_rank == position])
            for position in positions
        ),
    ]
    return [group for group in groups if len(group.ranks) > 1]


def compare(logs: Mapping[Rank, Iterator[Entry]], *, history: int) -> list[Comparison]:
    """Return where the ranks first differ, and which groups of them do there; the first group is all ranks.

    Entries that a log lacks at its beginning, or between others, are not compared; a log that ends while another
    one goes on differs from it.

    Args:
        logs: two at least, each in ascending order of numbers.
        history: entries before a difference that are kept.
    """
    sides = {rank: _Log(entries) for rank, entries in logs.items()}
    groups = comparisons(list(sides))
    start = max((log.head.number for log in sides.values() if log.head is not None), default=0)
    for log in sides.values():
        log.skip_to(start)
    before: deque[Entry] = deque(maxlen=history)
    while groups[0].divergence is None:
        numbers = [log.head.number for log in sides.values() if log.head is not None]
        if not numbers:
            break
        number = min(numbers)
        _compare_at(number, groups, sides, tuple(before))
        before.append(next(log.head for log in sides.values() if log.head is not None and log.head.number == number))
        for log in sides.values():
            log.skip_to(number + 1)
    return groups


def _compare_at(
    number: int, groups: Sequence[Comparison], sides: Mapping[Rank, _Log], before: tuple[Entry, ...]
) -> None:
    for group in groups:
        heads = {rank: sides[rank].head for rank in group.ranks}
        there = {rank: head for rank, head in heads.items() if head is not None and head.number == number}
        ended: dict[Rank, Entry | None] = {rank: None for rank, head in heads.items() if head is None}
        differs = what_differs(there.values())
        if differs is None and there and ended:
            differs = Differs.LENGTH
        if differs is not None:
            group.divergence = Divergence(number, differs, there | ended, before)
