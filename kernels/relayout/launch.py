"""Checks the arguments, sees both sides as integers on the same axes, and copies."""

from __future__ import annotations

from math import gcd

import torch
from torch import Tensor

from hicache_storage.errors import LayoutError
from hicache_storage.kernels.move import refuse_duplicates
from hicache_storage.kernels.page_format import PageFormat
from hicache_storage.kernels.pool import check_layers
from hicache_storage.kernels.relayout.host_pool import EngineHostPool
from hicache_storage.kernels.relayout.reference import gather, scatter

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def to_page_unified(
    host: EngineHostPool,
    page_ids: Tensor,
    pages: Tensor,
    *,
    group_heads: int,
    rows: Tensor | None = None,
    layers: range | None = None,
) -> None:
    """Fill rows of *pages* with the pages *page_ids* of *host*, in page_unified order.

    Args:
        page_ids: `[P]` int32 or int64, in any order, repeated or not.
        pages: `[N, page_nbytes]` uint8 in host memory, the bytes of a row adjoin.
        group_heads: heads of a head group; 0 or 1 for MLA.
        rows: `[P]`, the row of each page id, none twice; None = 0, 1, 2, ...
        layers: move only these layers of *host*; a row keeps the bytes of its other layers.

    Raises:
        LayoutError: pool, ids, rows and pages do not fit together; nothing was written.

    Cost: every byte read once and written once. Calls with the same *pages* must not overlap.
    """
    pool, cells, ids, chosen = _prepared(host, page_ids, pages, group_heads, rows, layers)
    refuse_duplicates(chosen, "rows")
    gather(pool, ids, cells, chosen)


def from_page_unified(
    pages: Tensor,
    host: EngineHostPool,
    page_ids: Tensor,
    *,
    group_heads: int,
    rows: Tensor | None = None,
    layers: range | None = None,
) -> None:
    """Fill the pages *page_ids* of *host* from rows of *pages*: the inverse of `to_page_unified`, with its arguments.

    Here no page id may come twice, and *rows* may repeat.
    """
    pool, cells, ids, chosen = _prepared(host, page_ids, pages, group_heads, rows, layers)
    refuse_duplicates(ids, "page_ids")
    scatter(cells, chosen, pool, ids)


_Prepared = tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor, Tensor | None]


def _prepared(
    host: EngineHostPool,
    page_ids: Tensor,
    pages: Tensor,
    group_heads: int,
    rows: Tensor | None,
    layers: range | None,
) -> _Prepared:
    """Return both sides as words, the page ids and the rows, all checked."""
    parts = host.parts
    num_pages, num_layers = parts[0].shape[:2]
    page = _format(parts, group_heads)
    _check_pages(pages, page.page_nbytes)
    ids = _checked_ids("page_ids", page_ids, num_pages)
    chosen = None if rows is None else _checked_ids("rows", rows, len(pages))
    if chosen is None and len(ids) > len(pages):
        raise LayoutError(f"{len(ids)} pages do not fit into {len(pages)} rows")
    if chosen is not None and len(chosen) != len(ids):
        raise LayoutError(f"{len(ids)} page ids and {len(chosen)} rows")
    word = _word_nbytes((*parts, pages), page)
    pool = [torch.unflatten(_words(part, word), 3, (page.groups, -1)).permute(0, 3, 1, 2, 4, 5) for part in parts]
    cells = _cells(_words(pages, word), page, word)[: len(parts)]
    if layers is not None:
        check_layers(layers, num_layers)
        pool = [part[:, :, layers.start : layers.stop] for part in pool]
        cells = [part[:, :, layers.start : layers.stop] for part in cells]
    return tuple(pool), tuple(cells), ids, chosen


def _format(parts: tuple[Tensor, ...], group_heads: int) -> PageFormat:
    """Return the format of the pages that *parts* make."""
    _, num_layers, page_tokens, heads, _ = parts[0].shape
    width = group_heads or int(len(parts) == 1)
    if width < 1 or heads % width:
        raise LayoutError(f"{heads} heads are not made of groups of {group_heads}")
    widths = [part.shape[-1] * part.element_size() for part in parts]
    return PageFormat(
        groups=heads // width,
        layers=num_layers,
        page_tokens=page_tokens,
        group_heads=width,
        k_head_nbytes=widths[0],
        v_head_nbytes=widths[1] if len(widths) > 1 else 0,
    )


def _cells(pages: Tensor, page: PageFormat, word: int) -> list[Tensor]:
    """Return the K and the V of *pages* as views `[row, group, layer, token, head, word]`."""
    row, cell, start = pages.stride(0), page.cell_nbytes // word, pages.storage_offset()
    views = []
    for offset, head_nbytes in ((0, page.k_head_nbytes), (page.v_offset, page.v_head_nbytes)):
        head = head_nbytes // word
        size = (len(pages), page.groups, page.layers, page.page_tokens, page.group_heads, head)
        stride = (row, page.layers * cell, cell, page.group_heads * head, head, 1)
        views.append(pages.as_strided(size, stride, start + offset // word))
    return views


def _words(tensor: Tensor, word: int) -> Tensor:
    """Return *tensor* with its last axis seen as integers of *word* bytes."""
    item = tensor.element_size()
    size = (*tensor.shape[:-1], tensor.shape[-1] * item // word)
    stride = (*(stride * item // word for stride in tensor.stride()[:-1]), 1)
    start = tensor.storage_offset() * item // word
    return torch.empty(0, dtype=_WORDS[word]).set_(tensor.untyped_storage(), start, size, stride)


def _word_nbytes(tensors: tuple[Tensor, ...], page: PageFormat) -> int:
    """Return the widest word of which every row, and every distance between rows, is a whole number."""
    nbytes = [page.k_head_nbytes, page.v_head_nbytes]
    for tensor in tensors:
        strides = (stride for stride, size in zip(tensor.stride()[:-1], tensor.shape, strict=False) if size > 1)
        nbytes += [int(elements) * tensor.element_size() for elements in (tensor.storage_offset(), *strides)]
    return gcd(max(_WORDS), *nbytes)


def _check_pages(pages: Tensor, page_nbytes: int) -> None:
    if pages.dtype != torch.uint8 or pages.ndim != 2 or pages.shape[1] != page_nbytes:
        raise LayoutError(f"pages are {pages.dtype} {list(pages.shape)}, expected torch.uint8 [N, {page_nbytes}]")
    adjoin = pages.stride(1) == 1 or page_nbytes == 1
    if not adjoin or (len(pages) > 1 and pages.stride(0) < page_nbytes):
        raise LayoutError(f"the bytes of a page must adjoin and rows not overlap, got strides {pages.stride()}")
    if pages.device.type != "cpu":
        raise LayoutError(f"pages lie on {pages.device}: host layouts are copied in host memory")


def _checked_ids(name: str, ids: Tensor, count: int) -> Tensor:
    if ids.ndim != 1 or ids.dtype not in {torch.int32, torch.int64} or ids.device.type != "cpu":
        raise LayoutError(f"{name} is {ids.dtype} {list(ids.shape)} on {ids.device}, expected [P] integers on the CPU")
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count:
        raise LayoutError(f"{name} reach from {int(ids.min())} to {int(ids.max())}, expected [0, {count})")
    return ids.long()
