"""The scatter for a GPU; `kernels/addressing.py` says what the arguments hold."""

from __future__ import annotations

import triton
import triton.language as tl

from hicache_storage.kernels.addressing import block_of


@triton.jit
def scatter_pages_kernel(
    pages: tl.tensor,
    stretches: tl.tensor,
    moves: tl.tensor,
    RUN: tl.constexpr,  # noqa: N803 - capitals mark what is known when a kernel is compiled
    SLOT: tl.constexpr,  # noqa: N803
    UNIT: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    """Fill one block of one stretch of one page of the pool from its host page."""
    pool, host, inside = block_of(pages, stretches, moves, RUN, SLOT, UNIT, BLOCK)
    tl.store(pool, tl.load(host, mask=inside), mask=inside)
