"""What a gather and a scatter must do, one row at a time, from docs/layout-spec.md section 3 alone.

A plane is K or V of one layer: `[slots, slot_nbytes]` of bytes, whose heads lie at the start of each slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Selection:
    """Which bytes move: `rows[i]` of the host pages is page `page_ids[i]` of the pool."""

    page_ids: Sequence[int]
    rows: Sequence[int]
    layers: range
    tail_tokens: int


@dataclass(frozen=True)
class Geometry:
    layers: int
    heads: int
    group_heads: int
    head_nbytes: tuple[int, ...]  # of K, of V; of the latent row alone for MLA
    page_tokens: int

    @property
    def page_nbytes(self) -> int:
        return self.layers * self.heads * self.page_tokens * sum(self.head_nbytes)


def rows_of_a_page(geometry: Geometry) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (layer, K or V, token, head, bytes) of each row of a host page in its order."""
    for group in range(geometry.heads // geometry.group_heads):
        for layer in range(geometry.layers):
            for part, nbytes in enumerate(geometry.head_nbytes):
                for token in range(geometry.page_tokens):
                    for head in range(group * geometry.group_heads, (group + 1) * geometry.group_heads):
                        yield layer, part, token, head, nbytes


def moved_rows(
    geometry: Geometry, planes: Sequence[Sequence[Bytes]], host: Bytes, selection: Selection
) -> Iterator[tuple[Bytes, Bytes]]:
    """Yield (row in the pool, row in the host pages) of all that moves, both views; *planes* is by layer and part."""
    last = len(selection.page_ids) - 1
    for place, (page, row) in enumerate(zip(selection.page_ids, selection.rows, strict=True)):
        tokens = selection.tail_tokens if place == last else geometry.page_tokens
        offset = 0
        for layer, part, token, head, nbytes in rows_of_a_page(geometry):
            if layer in selection.layers and token < tokens:
                slot = planes[layer][part][page * geometry.page_tokens + token]
                yield slot[head * nbytes : (head + 1) * nbytes], host[row, offset : offset + nbytes]
            offset += nbytes


def gather(geometry: Geometry, planes: Sequence[Sequence[Bytes]], host: Bytes, selection: Selection) -> None:
    for in_pool, in_host in moved_rows(geometry, planes, host, selection):
        in_host[:] = in_pool


def scatter(geometry: Geometry, planes: Sequence[Sequence[Bytes]], host: Bytes, selection: Selection) -> None:
    for in_pool, in_host in moved_rows(geometry, planes, host, selection):
        in_pool[:] = in_host
