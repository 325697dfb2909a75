"""Which bytes of which objects are which bytes of a rank's host page. Integers in, data out.

A writer's shard is made of whole chunks, so each of its objects is one run of its page. A reader
may hold any layers and heads: it reads the cells it needs, widened to whole checksum blocks, and
where the result is not one run of its page, copies the rows it needs out of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hicache_storage.errors import LayoutError
from hicache_storage.layout.grid import Chunk
from hicache_storage.layout.shard_layout import ShardLayout
from hicache_storage.layout.trailer import block_nbytes, trailer_nbytes


@dataclass(frozen=True, slots=True)
class RowCopy:
    """Copy *rows* rows of *row_nbytes*, *src_stride* bytes apart, to adjacent rows at *dst_offset*."""

    src_offset: int
    dst_offset: int
    rows: int
    row_nbytes: int
    src_stride: int


@dataclass(frozen=True, slots=True)
class ChunkWrite:
    """One object of a page that this rank writes: page bytes ``[page_offset, page_offset + nbytes)``."""

    chunk: Chunk
    page_offset: int
    nbytes: int
    block_nbytes: int


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """What this rank reads of one object of a page.

    Attributes:
        payload_nbytes: the object's payload; its trailer follows.
        offset: first payload byte to read, on a block border.
        nbytes: bytes to read, whole blocks (the last block of a payload may be short).
        page_offset: where the range lies in the page; meaningful where `copies` is empty.
        copies: how to move rows from the range, read into scratch memory, to the page; empty
            where the range is one run of the page and is read straight into it.
    """

    chunk: Chunk
    payload_nbytes: int
    block_nbytes: int
    offset: int
    nbytes: int
    page_offset: int
    copies: tuple[RowCopy, ...]

    @property
    def object_nbytes(self) -> int:
        return self.payload_nbytes + trailer_nbytes(self.payload_nbytes, self.block_nbytes)


def plan_writes(layout: ShardLayout) -> list[ChunkWrite]:
    """Return the objects of a page that this rank writes, layers first.

    Raises:
        LayoutError: the shard is not made of whole chunks; two ranks that disagreed about the
            grid would store different bytes under one key.
    """
    misfit = layout.grid.misfit(layout.shape, layout.shard)
    if misfit is not None:
        raise LayoutError(misfit)
    return [ChunkWrite(read.chunk, read.page_offset, read.nbytes, read.block_nbytes) for read in plan_reads(layout)]


def plan_reads(layout: ShardLayout) -> list[ChunkRead]:
    """Return what this rank reads of each object that holds a part of its page, layers first.

    Every byte of the page comes from exactly one read. Any shard can be read from any grid.
    """
    return [
        _plan_chunk(layout, chunk)
        for layers in layout.grid.layer_ranges(layout.shape)
        if layers.start < layout.shard.layers.stop and layout.shard.layers.start < layers.stop
        for chunk in (Chunk(layers, group) for group in _groups_of(layout))
    ]


def _groups_of(layout: ShardLayout) -> list[int | None]:
    if layout.shape.is_mla:
        return [None]
    step = layout.grid.head_partition
    return list(range(layout.shard.heads.start // step, -(-layout.shard.heads.stop // step)))


def _plan_chunk(layout: ShardLayout, chunk: Chunk) -> ChunkRead:
    shape, grid, shard = layout.shape, layout.grid, layout.shard
    cell, payload = grid.cell_nbytes(shape), grid.payload_nbytes(shape, chunk)
    block = block_nbytes(cell)
    first = max(chunk.layers.start, shard.layers.start)
    layers = range(first, min(chunk.layers.stop, shard.layers.stop))
    wanted = (layers.start - chunk.layers.start) * cell
    offset = wanted // block * block
    stop = min(-(-(wanted + len(layers) * cell) // block) * block, payload)
    page_layers = range(layers.start - shard.layers.start, layers.stop - shard.layers.start)
    groups = _page_groups(layout, chunk)
    page_offset, _ = layout.chunk_span(page_layers, groups.start)
    whole_cells = layout.group_heads == grid.head_partition
    if whole_cells and (offset, stop - offset) == (wanted, len(layers) * cell):
        return ChunkRead(chunk, payload, block, offset, stop - offset, page_offset, ())
    copies = tuple(copy for group in groups for copy in _row_copies(layout, chunk, page_layers, group, wanted - offset))
    return ChunkRead(chunk, payload, block, offset, stop - offset, page_offset, copies)


def _page_groups(layout: ShardLayout, chunk: Chunk) -> range:
    """Return the groups of the page that lie within the chunk's head group."""
    if chunk.group is None:
        return range(1)
    step, heads, width = layout.grid.head_partition, layout.shard.heads, layout.group_heads
    start = max(chunk.group * step, heads.start)
    stop = min((chunk.group + 1) * step, heads.stop)
    return range((start - heads.start) // width, (stop - heads.start) // width)


def _row_copies(
    layout: ShardLayout, chunk: Chunk, page_layers: range, group: int, scratch_offset: int
) -> list[RowCopy]:
    """Return the copies that fill one group of the page from the cells of *chunk*.

    A row is one token's heads of K or of V. Where K and V rows are equally wide, the rows of all
    layers have one stride and need one copy.
    """
    shape, heads = layout.shape, layout.grid.head_partition
    dst, length = layout.chunk_span(page_layers, group)
    if chunk.group is None or layout.group_heads == heads:
        return [RowCopy(scratch_offset, dst, 1, length, length)]
    first_head = layout.shard.heads.start + group * layout.group_heads - chunk.group * heads
    tokens, item = shape.page_tokens, shape.item_nbytes
    k_row, v_row = shape.k_row_nbytes(layout.group_heads), shape.v_row_nbytes(layout.group_heads)
    k_stride, v_stride = shape.k_row_nbytes(heads), shape.v_row_nbytes(heads)
    src = scratch_offset + first_head * shape.head_dim * item
    if k_row == v_row:
        return [RowCopy(src, dst, len(page_layers) * 2 * tokens, k_row, k_stride)]
    copies = []
    for layer in range(len(page_layers)):
        cell_src = scratch_offset + layer * tokens * (k_stride + v_stride)
        cell_dst = dst + layer * tokens * (k_row + v_row)
        v_src = cell_src + tokens * k_stride + first_head * shape.v_head_dim * item
        copies.append(RowCopy(cell_src + first_head * shape.head_dim * item, cell_dst, tokens, k_row, k_stride))
        copies.append(RowCopy(v_src, cell_dst + tokens * k_row, tokens, v_row, v_stride))
    return copies
