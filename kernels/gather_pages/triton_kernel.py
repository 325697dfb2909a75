"""The gather for a GPU; `kernels/addressing.py` says what the arguments hold."""

from __future__ import annotations

import triton
import triton.language as tl

from hicache_storage.kernels.addressing import block_of


@triton.jit
def gather_pages_kernel(
    pages: tl.tensor,
    stretches: tl.tensor,
    moves: tl.tensor,
    RUN: tl.constexpr,  # noqa: N803 - capitals mark what is known when a kernel is compiled
    SLOT: tl.constexpr,  # noqa: N803
    UNIT: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    """Fill one block of one stretch of one host page from the pool."""
    pool, host, inside = block_of(pages, stretches, moves, RUN, SLOT, UNIT, BLOCK)
    tl.store(host, tl.load(pool, mask=inside), mask=inside)
