"""What a relayout must give, one row at a time, from the axes as SGLang 0.5.23 writes them. Imports nothing of the project.

layer_first        kv_buffer[K/V][layer][slot][head]
page_first         kv_buffer[K/V][slot][layer][head]
page_first_direct  kv_buffer[K/V][page][layer][token][head]
page_head          kv_buffer[K/V][page][head][token][layer]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Sizes:
    """*v_row* = 0 for MLA; rows in bytes."""

    layers: int
    heads: int
    page_tokens: int
    pages: int
    k_row: int
    v_row: int

    @property
    def rows(self) -> tuple[int, ...]:
        return (self.k_row, self.v_row) if self.v_row else (self.k_row,)

    @property
    def page_nbytes(self) -> int:
        return self.layers * self.page_tokens * self.heads * sum(self.rows)


def pool_shape(layout: str, sizes: Sizes, row: int) -> tuple[int, ...]:
    slots = sizes.pages * sizes.page_tokens
    match layout:
        case "layer_first":
            return (sizes.layers, slots, sizes.heads, row)
        case "page_first":
            return (slots, sizes.layers, sizes.heads, row)
        case "page_first_direct":
            return (sizes.pages, sizes.layers, sizes.page_tokens, sizes.heads, row)
        case "page_head":
            return (sizes.pages, sizes.heads, sizes.page_tokens, sizes.layers, row)
    raise AssertionError(layout)


def row_of(layout: str, sizes: Sizes, place: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Return the index of a row in K or V of a pool; *place* is page, layer, token, head."""
    page, layer, token, head = place
    slot = page * sizes.page_tokens + token
    match layout:
        case "layer_first":
            return (layer, slot, head)
        case "page_first":
            return (slot, layer, head)
        case "page_first_direct":
            return (page, layer, token, head)
        case "page_head":
            return (page, head, token, layer)
    raise AssertionError(layout)


def unified_rows(sizes: Sizes, group_heads: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (layer, K or V, token, head) of each row of a page_unified page, in its order."""
    for group in range(sizes.heads // group_heads):
        for layer in range(sizes.layers):
            for part in range(len(sizes.rows)):
                for token in range(sizes.page_tokens):
                    for head in range(group * group_heads, (group + 1) * group_heads):
                        yield layer, part, token, head


def unified_page(layout: str, sizes: Sizes, parts: list[Bytes], page: int, group_heads: int) -> bytes:
    """Return a page's bytes in page_unified order; *parts* are K and V, or the latent rows, in the pool's shape."""
    return b"".join(
        parts[part][row_of(layout, sizes, (page, layer, token, head))].tobytes()
        for layer, part, token, head in unified_rows(sizes, group_heads)
    )


def spans_of_layers(sizes: Sizes, group_heads: int, layers: range) -> Iterator[int]:
    """Yield every byte of a page_unified page that belongs to *layers*."""
    offset = 0
    for layer, part, _, _ in unified_rows(sizes, group_heads):
        if layer in layers:
            yield from range(offset, offset + sizes.rows[part])
        offset += sizes.rows[part]
