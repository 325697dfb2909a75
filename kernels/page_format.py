"""Where the bytes of a host page lie, for the kernels that fill and read it. Integers only.

page   (head_group, layer) cells, one behind the other
cell   K rows of page_tokens tokens | V rows of page_tokens tokens
row    group_heads heads of one token; for MLA the token's latent row, and there is no V
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from hicache_storage.errors import LayoutError
from hicache_storage.layout import ShardLayout


@dataclass(frozen=True, slots=True)
class PageFormat:
    """One rank's page in page_unified order. Source: docs/layout-spec.md 3.

    Attributes:
        groups: head groups of the page; 1 for MLA.
        layers: layers of the page.
        page_tokens: tokens of the page.
        group_heads: heads of a group; 1 for MLA.
        k_head_nbytes: bytes of one head's K row; for MLA of the latent row.
        v_head_nbytes: bytes of one head's V row; 0 for MLA.
    """

    groups: int
    layers: int
    page_tokens: int
    group_heads: int
    k_head_nbytes: int
    v_head_nbytes: int

    @classmethod
    def of(cls, layout: ShardLayout) -> Self:
        """Return the format of the pages of *layout*."""
        shape = layout.shape
        return cls(
            groups=layout.groups,
            layers=len(layout.shard.layers),
            page_tokens=shape.page_tokens,
            group_heads=max(layout.group_heads, 1),
            k_head_nbytes=shape.head_dim * shape.item_nbytes,
            v_head_nbytes=shape.v_head_dim * shape.item_nbytes,
        )

    @property
    def k_run_nbytes(self) -> int:
        """Bytes of one token's K in one head group: one run of bytes in the page and in the pool."""
        return self.group_heads * self.k_head_nbytes

    @property
    def v_run_nbytes(self) -> int:
        """Bytes of one token's V in one head group; 0 for MLA."""
        return self.group_heads * self.v_head_nbytes

    @property
    def v_offset(self) -> int:
        """First byte of a cell's V rows, counted from the cell's start."""
        return self.page_tokens * self.k_run_nbytes

    @property
    def cell_nbytes(self) -> int:
        """Bytes of one layer of one head group."""
        return self.page_tokens * (self.k_run_nbytes + self.v_run_nbytes)

    @property
    def page_nbytes(self) -> int:
        """Bytes of a page."""
        return self.groups * self.layers * self.cell_nbytes

    def offset(self, group: int, layer: int) -> int:
        """Return the first byte of a cell, counted from the start of the page."""
        if not (0 <= group < self.groups and 0 <= layer < self.layers):
            raise LayoutError(
                f"group {group}, layer {layer} is not in a page of {self.groups} groups and {self.layers} layers"
            )
        return (group * self.layers + layer) * self.cell_nbytes
