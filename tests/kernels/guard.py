"""Poisoned memory with guard bands, so that a byte written where none belongs is seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

POISON = 0xA5
GUARD_NBYTES = 4096


@dataclass(frozen=True)
class Guarded:
    """Bytes in the middle of poison.

    Attributes:
        arena: guard band, body, guard band.
        body: uint8; a view of the arena.
    """

    arena: Tensor
    body: Tensor

    def assert_untouched_outside(self) -> None:
        before, after = self.body.storage_offset(), self.body.storage_offset() + self.body.numel()
        assert bool((self.arena[:before] == POISON).all()), "bytes before the body were written"
        assert bool((self.arena[after:] == POISON).all()), "bytes behind the body were written"


def guarded(nbytes: int, *, device: str = "cpu", shift: int = 0) -> Guarded:
    """Return *nbytes* of poison between guard bands; the body starts *shift* bytes off a multiple of 16."""
    arena = torch.full((GUARD_NBYTES + shift + nbytes + GUARD_NBYTES,), POISON, dtype=torch.uint8, device=device)
    start = GUARD_NBYTES + shift
    return Guarded(arena, arena[start : start + nbytes])
