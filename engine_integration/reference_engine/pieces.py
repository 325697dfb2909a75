"""What a scheduler hands over to be computed, and what comes back. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hicache_storage.engine_integration.controller.pools import LoadJob


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a request's tokens are chosen.

    Attributes:
        temperature: 0 takes the likeliest token, the first of equals.
        top_p: the likeliest tokens that have this share of the probability together are chosen from.
        seed: with the token's position, all the randomness there is.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens of one sequence that are computed at one go.

        sequence: [ KV is in its pages | tokens )
                  0                  start     stop

    Attributes:
        pages: device pages of the sequence, up to *stop* at least, in order.
        loads: before reading layer l of *pages*, wait for layer l of each of these.
        sampling: how to choose the token behind *tokens*; None if there is no need to.
    """

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]
    loads: tuple[LoadJob, ...] = ()
    sampling: Sampling | None = None

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Computed:
    """What became of a piece, the same on every rank.

    Attributes:
        token: the one behind it; None if it was not asked for.
        is_restored: False if what it should have read did not arrive; its KV and token mean nothing then.
    """

    token: int | None
    is_restored: bool


class Pieces(Protocol):
    """Whatever computes pieces."""

    def compute(self, batch: Sequence[Piece]) -> list[Computed]: ...
