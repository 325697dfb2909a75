"""What a first unequal entry says, and how it is told. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hicache_storage.engine_integration.consensus.entry import Entry, Rank
from hicache_storage.errors import RankFailure


class Differs(StrEnum):
    """What differs first."""

    ORDER = "call order"
    PARAMETERS = "parameters"
    RESULTS = "results"
    LENGTH = "number of entries"

    @property
    def advice(self) -> str:
        return _ADVICE[self]


_ADVICE = {
    Differs.ORDER: "look at scheduling and at what takes finished transfers from queues",
    Differs.PARAMETERS: "the state of the ranks has differed before; look at what the parameters come from, and record it",
    Differs.RESULTS: "the same call with the same parameters; look at the operation itself",
    Differs.LENGTH: "a rank stands still, or was ended; look at what it does after its last entry",
}


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first entry on which ranks are not equal.

    Attributes:
        number: the entry's number.
        entries: what each rank has there; None where it did not come so far.
        before: this rank's last entries before it, the oldest first.
    """

    number: int
    differs: Differs
    entries: Mapping[Rank, Entry | None]
    before: Sequence[Entry]

    def __str__(self) -> str:
        return "\n".join(
            [
                f"Found rank divergence at entry {self.number}: {self.differs} differ{'s' * self._is_singular}",
                *(f"  {ranks}: {text}" for ranks, text in sides(self.entries)),
                f"  {self.differs.advice}",
                "  what this rank did before it:" if self.before else "",
                *(f"    {entry.number} {entry}" for entry in self.before),
            ]
        ).rstrip()

    @property
    def _is_singular(self) -> bool:
        return self.differs in (Differs.ORDER, Differs.LENGTH)

    def failure(self, ranks: Sequence[Rank]) -> RankFailure:
        """Return what a scheduler that must not go on raises; each of *ranks*, as they are counted, says what it did."""
        reasons = {
            number: f"{rank}: {text_of(self.entries[rank])}"
            for number, rank in enumerate(ranks)
            if rank in self.entries
        }
        return RankFailure(f"rank consensus, entry {self.number}", reasons)


def what_differs(entries: Collection[Entry]) -> Differs | None:
    """Return what differs between the entries that ranks have under one number; None if they are equal."""
    if len({(entry.event == "call", entry.event == "end", entry.name) for entry in entries}) > 1:
        return Differs.ORDER
    if len({(entry.event, entry.value) for entry in entries}) > 1:
        return Differs.PARAMETERS if next(iter(entries)).event == "call" else Differs.RESULTS
    return None


def sides(entries: Mapping[Rank, Entry | None]) -> list[tuple[str, str]]:
    """Return (ranks, what they have), a line for each different thing, the most frequent first."""
    texts = {rank: text_of(entry) for rank, entry in sorted(entries.items())}
    return [
        (" ".join(str(rank) for rank, text in texts.items() if text == side), side)
        for side, _ in Counter(texts.values()).most_common()
    ]


def text_of(entry: Entry | None) -> str:
    """Return what a rank did, also if it did nothing."""
    return "nothing" if entry is None else str(entry)
