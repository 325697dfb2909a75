"""Where a program of a kernel reads and writes. Every product of an index and a distance is made here, in 64 bits.

    grid        (blocks of a stretch, stretches, pages)
    stretches   [C, 2]   where the tensor of a layer's K or V starts for a head group, as an address in bytes;
                         where the stretch starts in a host page, in elements
    moves       [P, 3]   first slot of the page; where its host page starts, in elements; tokens that move

A stretch is one head group of one layer's K or V of a page: in the host page without gaps, in the pool a run of
elements for each slot. An element is the type of `pages`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def offset_of(index: tl.tensor, distance: tl.tensor) -> tl.tensor:
    """Return ``index * distance`` in int64. Triton gives a small integer 32 bits, in which the product would wrap."""
    return tl.cast(index, tl.int64) * distance


@triton.jit
def block_of(
    pages: tl.tensor,
    stretches: tl.tensor,
    moves: tl.tensor,
    RUN: tl.constexpr,  # noqa: N803 - capitals mark what is known when a kernel is compiled
    SLOT: tl.constexpr,  # noqa: N803
    UNIT: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return this program's pointers into the pool and into the host pages, and which of them move.

    Args:
        RUN: elements of a slot that belong to the stretch.
        SLOT: elements from slot to slot.
        UNIT: bytes that divide every address, start and distance.
        BLOCK: elements of a program.
    """
    stretch = stretches + 2 * tl.program_id(1)
    page = moves + 3 * tl.program_id(2)
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pool = tl.multiple_of(tl.load(stretch).to(tl.pointer_type(pages.dtype.element_ty)), UNIT)
    host = tl.multiple_of(
        tl.load(stretch + 1) + tl.load(page + 1), UNIT * 8 // pages.dtype.element_ty.primitive_bitwidth
    )
    first_slot = tl.load(page)
    if RUN == SLOT:
        place = offset_of(first_slot, SLOT) + element
    else:
        place = offset_of(first_slot + element // RUN, SLOT) + element % RUN
    inside = element < tl.load(page + 2) * RUN
    return pool + place, pages + host + element, inside
