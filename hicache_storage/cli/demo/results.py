"""What the demo's engines did: every answer, and what was stored and restored for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hicache_storage import telemetry
from hicache_storage.cli.demo.failures import failures_of
from hicache_storage.cli.demo.running import Answer
from hicache_storage.layout import Topology


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer.

    Attributes:
        document, turn: counted from 1.
        prompt: tokens of the whole conversation up to the answer.
    """

    engine: str
    document: int
    turn: int
    question: str
    prompt: tuple[int, ...]
    answer: Answer


class _Counted:
    """What went wrong, by the counters of the ranks."""

    __slots__ = ()
    counters: Mapping[str, int]

    @property
    def failures(self) -> dict[str, int]:
        return failures_of(self.counters)

    @property
    def num_quarantined(self) -> int:
        return self.counters.get(telemetry.OBJECTS_QUARANTINED, 0)


@dataclass(frozen=True, slots=True)
class Written(_Counted):
    """What the writer said and stored.

    Attributes:
        computed: the tokens whose KV it has stored, as far as they fill pages; one sequence for each conversation.
        next_prompts: what the readers answer, one for each conversation.
        objects: objects of all these pages.
        objects_known: objects of the first turns' prompts, and how many of them the store had before.
        objects_there: how many of *objects* the store has now.
        counters: of all ranks together.
    """

    turns: list[Turn]
    computed: list[tuple[int, ...]]
    next_prompts: list[tuple[int, ...]]
    objects: int
    objects_known: tuple[int, int]
    objects_there: int
    counters: Mapping[str, int]

    @property
    def was_warm(self) -> bool:
        """The store had all that could be known before the model said anything."""
        known, there = self.objects_known
        return known == there

    @property
    def was_cold(self) -> bool:
        return self.objects_known[1] == 0

    @property
    def objects_stored(self) -> int:
        return self.counters.get(telemetry.OBJECTS_STORED, 0)

    @property
    def one_writer(self) -> bool | None:
        """Each object was stored by exactly one rank; None where the store had some before, so that nobody can tell.

        The ranks together count as many as are there now, and none of them found one of its own there already.
        """
        if not self.was_cold:
            return None
        is_twice = self.counters.get(telemetry.PAGES_ALREADY_THERE, 0) > 0
        return self.objects_stored == self.objects_there and not is_twice


@dataclass(frozen=True, slots=True)
class Restored(_Counted):
    """One answer of a reader, with the store and without.

    Attributes:
        cold: the same engine's answer with nothing of the prompt in any cache.
        pages_expected: full pages of the prompt that the writer has stored, one token of it being left to compute.
        counters: what all ranks counted meanwhile.
    """

    turn: Turn
    cold: Answer
    pages_expected: int
    counters: Mapping[str, int]

    @property
    def is_same_text(self) -> bool:
        return self.cold.tokens == self.turn.answer.tokens


@dataclass(frozen=True, slots=True)
class Reading:
    """What one reader topology did."""

    reader: Topology
    page_tokens: int
    restored: list[Restored] = field(default_factory=list)

    def total(self, name: str) -> int:
        """Return what all ranks counted under *name* while they answered with the store."""
        return sum(one.counters.get(name, 0) for one in self.restored)

    @property
    def pages_hit(self) -> int:
        return sum(one.turn.answer.cached.total for one in self.restored) // self.page_tokens

    @property
    def pages_expected(self) -> int:
        return sum(one.pages_expected for one in self.restored)

    @property
    def is_complete(self) -> bool:
        """Every page came from the store, and every text is the same."""
        return self.pages_hit == self.pages_expected and all(one.is_same_text for one in self.restored)

    @property
    def failures(self) -> dict[str, int]:
        names = {name for one in self.restored for name in one.failures}
        return {name: self.total(name) for name in sorted(names)}

    @property
    def num_quarantined(self) -> int:
        return self.total(telemetry.OBJECTS_QUARANTINED)
