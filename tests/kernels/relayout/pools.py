"""Host pools of random bytes with guard bands around and between their halves, and the cases that tests run on."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from hicache_storage.kernels.relayout import EngineHostPool
from tests.kernels.relayout.oracle import Bytes, Sizes, pool_shape, unified_page

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
GUARD = 64
POISON = 0xA5

MHA_SIZES = [
    Sizes(layers=3, heads=4, page_tokens=5, pages=4, k_row=16, v_row=16),
    Sizes(layers=1, heads=2, page_tokens=2, pages=2, k_row=8, v_row=8),
    Sizes(layers=2, heads=1, page_tokens=2, pages=3, k_row=4, v_row=4),
    Sizes(layers=2, heads=2, page_tokens=1, pages=3, k_row=2, v_row=2),
    Sizes(layers=1, heads=1, page_tokens=1, pages=1, k_row=1, v_row=1),
    Sizes(layers=2, heads=2, page_tokens=3, pages=3, k_row=3, v_row=3),
    Sizes(layers=2, heads=2, page_tokens=16, pages=3, k_row=1024, v_row=1024),
]
SPLIT_SIZES = [
    Sizes(layers=2, heads=2, page_tokens=3, pages=3, k_row=24, v_row=16),
    Sizes(layers=3, heads=4, page_tokens=2, pages=3, k_row=2, v_row=5),
]
MLA_SIZES = [
    Sizes(layers=3, heads=1, page_tokens=4, pages=3, k_row=528, v_row=0),
    Sizes(layers=1, heads=1, page_tokens=1, pages=2, k_row=6, v_row=0),
    Sizes(layers=2, heads=1, page_tokens=2, pages=4, k_row=1, v_row=0),
]


@dataclass(frozen=True)
class Case:
    layout: str
    sizes: Sizes
    group_heads: int

    def __str__(self) -> str:
        s = self.sizes
        return (
            f"{self.layout}-{s.layers}x{s.heads}x{s.page_tokens}x{s.pages}-rows{s.k_row},{s.v_row}-g{self.group_heads}"
        )


def _groups(heads: int) -> list[int]:
    return [width for width in range(1, heads + 1) if heads % width == 0]


CASES = [
    *(Case(layout, s, width) for layout in LAYOUTS for s in MHA_SIZES for width in _groups(s.heads)),
    *(Case(layout, s, width) for layout in LAYOUTS[1:3] for s in SPLIT_SIZES for width in _groups(s.heads)),
    *(Case(layout, s, 1) for layout in LAYOUTS[:3] for s in MLA_SIZES),
]


class GuardedPool:
    """A pool in the middle of poison; *halves* are its bytes as arrays that share its memory."""

    def __init__(self, case: Case, *, seed: int = 1, dtype: torch.dtype = torch.uint8) -> None:
        self.case = case
        shapes = [pool_shape(case.layout, case.sizes, row) for row in case.sizes.rows]
        nbytes = sum(map(prod, shapes)) + GUARD * (len(shapes) + 1)
        self.arena = torch.full((nbytes,), POISON, dtype=torch.uint8)
        self.halves: list[Bytes] = []
        self._inside = np.zeros(nbytes, bool)
        tensors, start = [], GUARD
        for number, shape in enumerate(shapes):
            stop = start + prod(shape)
            body = self.arena[start:stop]
            body.copy_(torch.from_numpy(np.random.default_rng(seed + number).integers(0, 256, prod(shape), np.uint8)))
            tensors.append(body.view(shape).view(dtype))
            self.halves.append(body.view(shape).numpy())
            self._inside[start:stop] = True
            start = stop + GUARD
        values = tensors[1] if len(tensors) > 1 else None
        self.host = EngineHostPool(case.layout, tensors[0], values, case.sizes.page_tokens)

    def page(self, page: int) -> bytes:
        """Return what the oracle takes for the page's page_unified bytes."""
        return unified_page(self.case.layout, self.case.sizes, self.halves, page, self.case.group_heads)

    def assert_untouched_outside(self) -> None:
        assert (self.arena.numpy()[~self._inside] == POISON).all()


class GuardedPages:
    """Rows of poison in the middle of poison."""

    def __init__(self, rows: int, page_nbytes: int) -> None:
        self.arena = torch.full((rows * page_nbytes + 2 * GUARD,), POISON, dtype=torch.uint8)
        self.pages: Tensor = self.arena[GUARD : GUARD + rows * page_nbytes].view(rows, page_nbytes)

    def row(self, row: int) -> bytes:
        return self.pages[row].numpy().tobytes()

    def is_poison(self, row: int) -> bool:
        return bool((self.pages[row] == POISON).all())

    def assert_untouched_outside(self) -> None:
        assert (self.arena[:GUARD] == POISON).all()
        assert (self.arena[GUARD + self.pages.numel() :] == POISON).all()
