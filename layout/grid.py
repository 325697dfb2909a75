"""The fleet-wide layer x head grid whose cells' borders every object's borders lie on."""

from __future__ import annotations

from dataclasses import dataclass

from hicache_storage.errors import LayoutError
from hicache_storage.layout.geometry import KVShape
from hicache_storage.layout.topology import Shard


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one object holds of a page: absolute layers x one head group (None for MLA)."""

    layers: range
    group: int | None

    @property
    def suffix(self) -> str:
        """The part of the key that names the chunk: ``L0-30_H1``, or ``L0-30`` for MLA."""
        span = f"L{self.layers.start}-{self.layers.stop}"
        return span if self.group is None else f"{span}_H{self.group}"


@dataclass(frozen=True, slots=True)
class Grid:
    """Chunk borders, the same for every deployment that shares a store.

    Attributes:
        layer_partition: layers of a chunk; the last chunk of a model may have fewer.
        head_partition: KV heads of a chunk; divides the model's KV heads. 0 for MLA.
    """

    layer_partition: int
    head_partition: int

    def check(self, shape: KVShape) -> None:
        """Raise `LayoutError` unless the grid can cut a model of *shape*."""
        if not 1 <= self.layer_partition <= shape.num_layers:
            raise LayoutError(f"layer_partition = {self.layer_partition} is not in [1, {shape.num_layers}], the layers")
        if shape.is_mla:
            if self.head_partition != 0:
                raise LayoutError(f"head_partition = {self.head_partition}: MLA has no head axis, it must be 0")
        elif self.head_partition < 1 or shape.num_kv_heads % self.head_partition:
            raise LayoutError(
                f"head_partition = {self.head_partition} does not divide the model's {shape.num_kv_heads} KV heads"
            )

    def groups(self, shape: KVShape) -> list[int | None]:
        """Return the head groups of a page; ``[None]`` for MLA."""
        return [None] if shape.is_mla else list(range(shape.num_kv_heads // self.head_partition))

    def layer_ranges(self, shape: KVShape) -> list[range]:
        """Return the layer ranges of the chunks; only the last may be shorter."""
        step = self.layer_partition
        return [range(a, min(a + step, shape.num_layers)) for a in range(0, shape.num_layers, step)]

    def chunks(self, shape: KVShape) -> list[Chunk]:
        """Return every chunk of a page, layers first."""
        return [Chunk(layers, group) for layers in self.layer_ranges(shape) for group in self.groups(shape)]

    def cell_nbytes(self, shape: KVShape) -> int:
        """Return the bytes of one layer x one head group of one page."""
        return shape.cell_nbytes(self.head_partition)

    def payload_nbytes(self, shape: KVShape, chunk: Chunk) -> int:
        """Return the bytes that a chunk's object holds before its trailer."""
        return len(chunk.layers) * self.cell_nbytes(shape)

    def misfit(self, shape: KVShape, shard: Shard) -> str | None:
        """Say why *shard* is not made of whole chunks, with both numbers; None if it is."""
        layers, heads = shard.layers, shard.heads
        ragged_stop = layers.stop % self.layer_partition and layers.stop != shape.num_layers
        if layers.start % self.layer_partition or ragged_stop:
            return f"layers [{layers.start}, {layers.stop}) are not on a grid of {self.layer_partition} layers"
        if not shape.is_mla and (heads.start % self.head_partition or heads.stop % self.head_partition):
            return (
                f"heads [{heads.start}, {heads.stop}) ({len(heads)} per rank) are not on a grid of "
                f"{self.head_partition} heads"
            )
        return None
