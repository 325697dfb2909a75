"""One rank's host page in page_unified order: where each layer, head group and token lies.

    MHA: (head_group, layer, K/V, token_in_page, head_in_group, head_dim)
    MLA: (layer, token_in_page, dim)

Within a head group a layer's K and V lie together and the next layer follows, so that any layer
range of one group is one run of bytes. Source: docs/layout-spec.md 3.
"""

from __future__ import annotations

from math import gcd

from hicache_storage.errors import LayoutError
from hicache_storage.layout.geometry import KVShape
from hicache_storage.layout.grid import Grid
from hicache_storage.layout.topology import Shard


class ShardLayout:
    """The host page of a rank that holds *shard*, for a store with objects on *grid*.

    The page's head groups are as wide as the grid's, or as wide as the rank's share of one:
    no group of the page ever spans two objects.

    Attributes:
        group_heads: heads of a group of this page; 0 for MLA.
        groups: groups of this page; 1 for MLA.
        cell_nbytes: bytes of one layer of one group.
        page_nbytes: bytes of one page of this rank.
    """

    def __init__(self, shape: KVShape, grid: Grid, shard: Shard) -> None:
        grid.check(shape)
        _check_shard(shape, shard)
        self.shape = shape
        self.grid = grid
        self.shard = shard
        self.group_heads = gcd(grid.head_partition, shard.heads.start, shard.heads.stop)
        self.groups = len(shard.heads) // self.group_heads if self.group_heads else 1
        self.cell_nbytes = shape.cell_nbytes(self.group_heads)
        self.page_nbytes = self.groups * len(shard.layers) * self.cell_nbytes

    @property
    def axes(self) -> tuple[int, ...]:
        """The page's array shape: ``(groups, layers, 2, page_tokens, group_heads, head_dim)``, or
        ``(layers, page_tokens, dim)`` for MLA.

        Raises:
            LayoutError: K and V rows have different widths, so that a page is no rectangular array.
        """
        shape, layers = self.shape, len(self.shard.layers)
        if shape.is_mla:
            return (layers, shape.page_tokens, shape.head_dim)
        if shape.head_dim != shape.v_head_dim:
            raise LayoutError(f"K rows of {shape.head_dim} and V rows of {shape.v_head_dim} elements form no array")
        return (self.groups, layers, 2, shape.page_tokens, self.group_heads, shape.head_dim)

    def chunk_span(self, layers: range, group: int) -> tuple[int, int]:
        """Return ``(offset, length)`` in bytes of a layer range of one group; both counted within this page.

        Args:
            layers: layers relative to the first layer of the shard.
            group: group of this page, 0 for MLA.
        """
        local = len(self.shard.layers)
        if not 0 <= layers.start <= layers.stop <= local:
            raise LayoutError(f"layers [{layers.start}, {layers.stop}) are not in the page's [0, {local})")
        if not 0 <= group < self.groups:
            raise LayoutError(f"group {group} is not in the page's [0, {self.groups})")
        return (group * local + layers.start) * self.cell_nbytes, len(layers) * self.cell_nbytes


def _check_shard(shape: KVShape, shard: Shard) -> None:
    if not 0 <= shard.layers.start < shard.layers.stop <= shape.num_layers:
        raise LayoutError(
            f"layers [{shard.layers.start}, {shard.layers.stop}) are not in the model's [0, {shape.num_layers})"
        )
    if shape.is_mla and shard.heads:
        raise LayoutError(f"a shard of an MLA model has no heads, got [{shard.heads.start}, {shard.heads.stop})")
    if not shape.is_mla and not 0 <= shard.heads.start < shard.heads.stop <= shape.num_kv_heads:
        raise LayoutError(
            f"heads [{shard.heads.start}, {shard.heads.stop}) are not in the model's [0, {shape.num_kv_heads})"
        )
