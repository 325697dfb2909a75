"""What one gather or scatter moves, checked once for every implementation."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Self, TypedDict, Unpack

import torch
from torch import Tensor

from hicache_storage.errors import LayoutError
from hicache_storage.kernels.page_format import PageFormat
from hicache_storage.kernels.pool import DevicePool, check_layers


class Which(TypedDict, total=False):
    """Which part of the named pages moves; everything where nothing is said.

    Attributes:
        rows: int32 or int64 ``[P]``, the row of the host pages that belongs to each page id; 0, 1, 2... if absent.
        layers: only the cells of these layers; the host pages keep room for all layers of the pool.
        tail_tokens: the page named last moves only its first so many tokens.
    """

    rows: Tensor | None
    layers: range | None
    tail_tokens: int | None


@dataclass(frozen=True, slots=True, eq=False)
class PageMove:
    """A gather or scatter whose arguments fit together. `check` makes one.

    Attributes:
        pages: host pages ``[N, page_nbytes]``, uint8.
        page_ids: pages of the pool, ``[P]``, on the CPU, each in range.
        rows: rows of *pages*, ``[P]``, on the CPU, each in range; ``None`` for 0, 1, 2...
        layers: layers that move.
        tail_tokens: tokens that the last page moves.
    """

    pool: DevicePool
    pages: Tensor
    format: PageFormat
    page_ids: Tensor
    rows: Tensor | None
    layers: range
    tail_tokens: int

    @classmethod
    def check(
        cls, pool: DevicePool, pages: Tensor, page_ids: Tensor, *, group_heads: int, **which: Unpack[Which]
    ) -> Self:
        """Return the move of *page_ids*.

        Raises:
            LayoutError: pool, host pages and indices do not fit together.
            TypeError: an argument that `Which` does not have.

        Cost: ids that lie on a device cost a synchronisation; ids on the CPU do not.
        """
        unknown = which.keys() - Which.__annotations__.keys()
        if unknown:
            raise TypeError(f"unexpected arguments {sorted(unknown)}; known are {sorted(Which.__annotations__)}")
        page_format = pool.page_format(group_heads)
        _check_pages(pages, page_format)
        ids = _on_host(page_ids, "page_ids", limit=pool.num_pages)
        rows = which.get("rows")
        layers = which.get("layers")
        if layers is not None:
            check_layers(layers, pool.num_layers)
        tail_tokens = which.get("tail_tokens")
        return cls(
            pool=pool,
            pages=pages,
            format=page_format,
            page_ids=ids,
            rows=_check_rows(rows, ids.numel(), pages.shape[0]),
            layers=range(pool.num_layers) if layers is None else layers,
            tail_tokens=pool.page_tokens if tail_tokens is None else _check_tail(tail_tokens, pool.page_tokens),
        )

    @property
    def unit_nbytes(self) -> int:
        """Bytes of the widest unit that divides every address, row and distance of this move: 16, 8, 4, 2 or 1."""
        runs = (self.format.k_run_nbytes, self.format.v_run_nbytes)
        return gcd(self.pool.alignment, self.pages.data_ptr(), self.pages.storage_offset(), *runs)


def refuse_duplicates(indices: Tensor | None, name: str) -> None:
    """Raise `LayoutError` if one place of the destination is named twice: which bytes it got would be chance."""
    if indices is None:
        return
    listed = indices.tolist()
    if len(set(listed)) != len(listed):
        raise LayoutError(f"{name} has {len(listed)} entries, only {len(set(listed))} of them different")


def _check_pages(pages: Tensor, page_format: PageFormat) -> None:
    if pages.dtype != torch.uint8 or pages.dim() != 2:
        raise LayoutError(f"host pages are [N, page_nbytes] torch.uint8, got {[*pages.shape]} {pages.dtype}")
    if pages.shape[1] != page_format.page_nbytes:
        raise LayoutError(f"host pages have {pages.shape[1]} bytes, the pool's pages {page_format.page_nbytes}")
    if not pages.is_contiguous():
        raise LayoutError(f"host pages lie {pages.stride(0)} bytes apart, expected {page_format.page_nbytes}")


def _check_rows(rows: Tensor | None, count: int, num_rows: int) -> Tensor | None:
    if rows is None:
        if count > num_rows:
            raise LayoutError(f"{count} page ids for {num_rows} host pages")
        return None
    if rows.shape != (count,):
        raise LayoutError(f"rows has shape {[*rows.shape]} for {count} page ids")
    return _on_host(rows, "rows", limit=num_rows)


def _check_tail(tail_tokens: int, page_tokens: int) -> int:
    if not 1 <= tail_tokens <= page_tokens:
        raise LayoutError(f"tail_tokens = {tail_tokens} is not in [1, {page_tokens}]")
    return tail_tokens


def _on_host(indices: Tensor, name: str, *, limit: int) -> Tensor:
    """Return *indices* on the CPU, each in ``[0, limit)``."""
    if indices.dtype not in {torch.int32, torch.int64} or indices.dim() != 1:
        raise LayoutError(f"{name} is one axis of int32 or int64, got {[*indices.shape]} {indices.dtype}")
    host = indices.cpu()
    if host.numel():
        least, most = (int(bound) for bound in host.aminmax())
        if least < 0 or most >= limit:
            raise LayoutError(f"{name} lie in [{least}, {most}], expected [0, {limit - 1}]")
    return host
