"""The copies themselves, in plain torch. On host memory this is the production path: see README.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_SMALL_NBYTES = 64 << 10
"""Pages below this cost more in calls than in bytes; README.md has the figures."""


def gather(pool: Sequence[Tensor], page_ids: Tensor, pages: Sequence[Tensor], rows: Tensor | None) -> None:
    """Fill rows of *pages* from pages of *pool*.

    Args:
        pool: K and V, or latent rows: `[page, group, layer, token, head, word]` of one integer type.
        pages: the same of the page_unified pages, `[row, group, layer, token, head, word]`.
        rows: the row of each page id; None = 0, 1, 2, ...
    """
    if rows is None:
        for source, target in zip(pool, pages, strict=True):
            torch.index_select(source, 0, page_ids, out=target[: len(page_ids)])
        return
    _copy_pages(pool, page_ids, pages, rows)


def scatter(pages: Sequence[Tensor], rows: Tensor | None, pool: Sequence[Tensor], page_ids: Tensor) -> None:
    """Fill pages of *pool* from rows of *pages*; the inverse of `gather`, with its arguments."""
    chosen = torch.arange(len(page_ids)) if rows is None else rows
    _copy_pages(pages, chosen, pool, page_ids)


def _copy_pages(sources: Sequence[Tensor], from_rows: Tensor, targets: Sequence[Tensor], to_rows: Tensor) -> None:
    if sum(target[:1].nbytes for target in targets) < _SMALL_NBYTES:
        for source, target in zip(sources, targets, strict=True):
            target.index_copy_(0, to_rows, source.index_select(0, from_rows))
        return
    for here, there, count in _adjacent(from_rows.tolist(), to_rows.tolist()):
        for source, target in zip(sources, targets, strict=True):
            target[there : there + count].copy_(source[here : here + count])


def _adjacent(from_rows: list[int], to_rows: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the longest stretches in which both rows count up by one: first row of each, and how many."""
    start = 0
    for index in range(1, len(from_rows) + 1):
        steps = index - start
        is_next = index < len(from_rows) and (from_rows[index], to_rows[index]) == (
            from_rows[start] + steps,
            to_rows[start] + steps,
        )
        if not is_next:
            yield from_rows[start], to_rows[start], steps
            start = index
