"""How an engine's host pool orders its bytes, and where a chunk lies in one when nothing needs to move.

The orders are those of SGLang 0.5.23's host pools, outermost axis first; the elements of a head's row come last:

    layer_first         (layer, page, token, head)
    page_first          (page, token, layer, head)
    page_first_direct   (page, layer, token, head)
    page_head           (page, head, token, layer)        MHA only

All K rows of the pool come first and then all V rows, in the same order. MLA pools have one latent row a token
in place of K heads, and no V.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from hicache_storage.errors import LayoutError
from hicache_storage.layout.shard_layout import ShardLayout

HOST_AXES = {
    "layer_first": ("layer", "page", "token", "head"),
    "page_first": ("page", "token", "layer", "head"),
    "page_first_direct": ("page", "layer", "token", "head"),
    "page_head": ("page", "head", "token", "layer"),
}
"""Layout name -> its axes, outermost first, as SGLang 0.5.23 defines them; a head's elements are innermost."""

PAGE_UNIFIED = "page_unified"
_SPLIT_WIDTHS = ("page_first", "page_first_direct")

Run = tuple[int, int]
"""Offset and length in bytes."""


def check_host_layout(name: str, *, is_mla: bool, equal_widths: bool) -> None:
    """Refuse a pool that SGLang 0.5.23 does not have.

    Args:
        equal_widths: K and V rows have the same width; true for MLA.

    Raises:
        LayoutError: no such layout, or none for this kind of KV.
    """
    if name not in HOST_AXES:
        raise LayoutError(f"host layout {name!r} is not one of {', '.join(HOST_AXES)}")
    if is_mla and name == "page_head":
        raise LayoutError("host layout page_head cuts a page by heads, and MLA rows have none")
    if not equal_widths and name not in _SPLIT_WIDTHS:
        raise LayoutError(f"host layout {name} has K and V rows of one width; others are {', '.join(_SPLIT_WIDTHS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPoolLayout:
    """A host pool of one rank as integers.

    Attributes:
        name: a key of `HOST_AXES`, or ``page_unified``.
        page: what a page of the pool holds.
        num_pages: pages of the pool.
        v_start: bytes from the pool's first K row to its first V row. None = V lies right behind K, as in a pool of
            one tensor; K and V rows of different widths lie in two tensors, and their distance must be given.
    """

    name: str
    page: ShardLayout
    num_pages: int
    v_start: int | None = None

    def __post_init__(self) -> None:
        shape = self.page.shape
        equal_widths = shape.is_mla or shape.head_dim == shape.v_head_dim
        if self.num_pages < 1:
            raise LayoutError(f"a host pool of {self.num_pages} pages holds nothing")
        if self.name == PAGE_UNIFIED:
            return
        check_host_layout(self.name, is_mla=shape.is_mla, equal_widths=equal_widths)
        if not equal_widths and self.v_start is None:
            raise LayoutError("K and V rows of different widths lie in two tensors: v_start is their distance")

    def chunk_runs(self, page: int, layers: range, group: int) -> tuple[Run, ...] | None:
        """Return the runs of the pool that are, one behind the other, a chunk's bytes in page_unified order.

        Offsets count from the pool's first byte. None means that the chunk has no such list of at most one run
        per layer and K or V: it must be copied, see `hicache_storage.kernels.relayout`.

        Args:
            layers: layers relative to the first layer of the shard.
            group: group of the page, 0 for MLA.

        Raises:
            LayoutError: the page, the layers or the group are not in the pool.
        """
        offset, length = self.page.chunk_span(layers, group)
        if not 0 <= page < self.num_pages:
            raise LayoutError(f"page {page} is not in the pool's [0, {self.num_pages})")
        if self.name == PAGE_UNIFIED:
            return ((page * self.page.page_nbytes + offset, length),) if length else ()
        parts = self._parts()
        if not all(part.has_whole_planes for part in parts):
            return None
        return _merged([part.plane(page, layer, group) for layer in layers for part in parts])

    def _parts(self) -> tuple[_Part, ...]:
        """Return K and V, for MLA the latent rows."""
        shape = self.page.shape
        sizes = {
            "page": self.num_pages,
            "layer": len(self.page.shard.layers),
            "token": shape.page_tokens,
            "head": max(len(self.page.shard.heads), 1),
        }
        k_row, v_row = shape.k_row_nbytes(1), shape.v_row_nbytes(1)
        v_start = prod(sizes.values()) * k_row if self.v_start is None else self.v_start
        rows = [(0, k_row)] if shape.is_mla else [(0, k_row), (v_start, v_row)]
        group_heads = max(self.page.group_heads, 1)
        return tuple(
            _Part(start, row, _strides(HOST_AXES[self.name], sizes, row), group_heads, shape.page_tokens)
            for start, row in rows
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """K or V of a pool. A *plane* is what one layer of one head group of one page has of it."""

    start: int
    row_nbytes: int
    strides: dict[str, int]
    group_heads: int
    page_tokens: int

    @property
    def has_whole_planes(self) -> bool:
        """Whether a plane is one run with its tokens and heads in page_unified order."""
        heads_adjoin = self.group_heads == 1 or self.strides["head"] == self.row_nbytes
        tokens_adjoin = self.page_tokens == 1 or self.strides["token"] == self.group_heads * self.row_nbytes
        return heads_adjoin and tokens_adjoin

    def plane(self, page: int, layer: int, group: int) -> Run:
        strides = self.strides
        within = page * strides["page"] + layer * strides["layer"] + group * self.group_heads * strides["head"]
        return self.start + within, self.page_tokens * self.group_heads * self.row_nbytes


def _strides(axes: Sequence[str], sizes: dict[str, int], row_nbytes: int) -> dict[str, int]:
    """Return the bytes from one index of each axis to the next."""
    strides: dict[str, int] = {}
    stride = row_nbytes
    for axis in reversed(axes):
        strides[axis] = stride
        stride *= sizes[axis]
    return strides


def _merged(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return *runs* with each that begins where the one before ends joined to it."""
    joined: list[Run] = []
    for offset, length in runs:
        if joined and offset == sum(joined[-1]):
            start, before = joined[-1]
            joined[-1] = (start, before + length)
        else:
            joined.append((offset, length))
    return tuple(joined)
