"""vLLM's KV blocks to host pages in page_unified order and back: permutations of bytes, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hicache_storage.engine_integration.adapters.vllm.row_place import RowPlace
from hicache_storage.errors import LayoutError
from hicache_storage.layout import ShardLayout

_UNITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Integers as wide as an element. Nothing computes with them: copying keeps every bit."""


@dataclass(frozen=True, slots=True)
class _Part:
    """K or V of all layers.

    Attributes:
        cells: per layer ``[B, *tokens, groups, group_heads, *dims]``, views of vLLM's memory.
        start: element of a page's cell at which the part starts.
        length: elements of the part in a cell.
    """

    cells: tuple[Tensor, ...]
    place: RowPlace
    start: int
    length: int


class EngineBlocks:
    """The KV blocks of one rank, described once. Owns nothing.

    Args:
        layers: vLLM's tensor of each layer, in the order of the layers; the first axis is the blocks.
        keys: where K's rows, or the latent rows of MLA, lie in a block.
        values: where V's rows lie; None for MLA.
        layout: the host page of this rank.

    Raises:
        LayoutError: the tensors are not those of the layout.
    """

    def __init__(self, layers: Sequence[Tensor], keys: RowPlace, values: RowPlace | None, layout: ShardLayout) -> None:
        _check_layers(layers, keys, values, layout)
        shape = layout.shape
        self._layout = layout
        self._groups, self._group_heads = layout.groups, max(layout.group_heads, 1)
        self._unit = _UNITS[shape.item_nbytes]
        self.device = layers[0].device
        self.block_tokens = keys.tokens.length
        self.blocks_per_page = shape.page_tokens // self.block_tokens
        split = shape.k_row_nbytes(layout.group_heads) * shape.page_tokens // shape.item_nbytes
        self._cell = layout.cell_nbytes // shape.item_nbytes
        self._parts = [self._part(layers, keys, 0, split)]
        if values is not None:
            self._parts.append(self._part(layers, values, split, self._cell - split))

    def gather(self, block_ids: Sequence[int], pages: Tensor) -> None:
        """Fill *pages*, ``[P, page_nbytes]`` contiguous bytes, from the blocks of each page, in order.

        On a GPU the pages lie there too, and the bytes are there once the current stream has got so far.
        """
        ids = self._indices(block_ids)
        for part in self._parts:
            for layer, cells in enumerate(part.cells):
                target = self._of_page(pages, part, layer)
                target.copy_(cells.index_select(0, ids).view(target.shape))

    def scatter(self, pages: Tensor, blocks: Sequence[int], block_ids: Sequence[int]) -> None:
        """Fill the blocks *block_ids* from *pages*.

        Args:
            pages: ``[P, page_nbytes]`` contiguous bytes on the blocks' device.
            blocks: which block of *pages* goes to each, counted over all pages.
            block_ids: no block twice.
        """
        ids, sources = self._indices(block_ids), self._indices(blocks)
        page, inner = sources // self.blocks_per_page, sources % self.blocks_per_page
        for part in self._parts:
            for layer, cells in enumerate(part.cells):
                cells[ids] = self._of_page(pages, part, layer)[page, inner]

    def _part(self, layers: Sequence[Tensor], place: RowPlace, start: int, length: int) -> _Part:
        axis = 1 + len(place.tokens.sizes)
        heads = (self._groups, self._group_heads)
        cells = tuple(_split(place.cells(layer.view(self._unit)), axis, heads) for layer in layers)
        return _Part(cells, place, start, length)

    def _of_page(self, pages: Tensor, part: _Part, layer: int) -> Tensor:
        """Return a layer's part of *pages* as ``[P, blocks, *tokens, groups, group_heads, *dims]``, a view."""
        grid = (pages.shape[0], self._groups, len(part.cells), self._cell)
        rows = pages.view(self._unit).view(grid)[:, :, layer, part.start : part.start + part.length]
        tokens = part.place.tokens.sizes
        rows = _split(rows, 2, (self.blocks_per_page, *tokens, self._group_heads, *part.place.dims.sizes))
        return rows.movedim(1, 2 + len(tokens))

    def _indices(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self.device, non_blocking=True)


def _split(tensor: Tensor, axis: int, sizes: tuple[int, ...]) -> Tensor:
    """Return a view with one axis as several, the last of them the fastest."""
    split: Tensor = tensor.unflatten(axis, sizes)  # type: ignore[no-untyped-call]
    return split


def _check_layers(layers: Sequence[Tensor], keys: RowPlace, values: RowPlace | None, layout: ShardLayout) -> None:
    shape = layout.shape
    if len(layers) != len(layout.shard.layers):
        raise LayoutError(f"vLLM has {len(layers)} KV layers here, the layout {len(layout.shard.layers)}")
    heads = max(len(layout.shard.heads), 1)
    found = (keys.heads.length, keys.dims.length, values.dims.length if values else 0)
    if found != (heads, shape.head_dim, shape.v_head_dim):
        expected = f"{heads} heads of {shape.head_dim} and {shape.v_head_dim}"
        raise LayoutError(f"vLLM's blocks have {found[0]} heads with rows of {found[1]} and {found[2]}, not {expected}")
    if shape.page_tokens % keys.tokens.length:
        raise LayoutError(f"pages of {shape.page_tokens} tokens are not made of blocks of {keys.tokens.length}")
    first = layers[0]
    for number, layer in enumerate(layers):
        if (layer.shape, layer.stride(), layer.dtype) != (first.shape, first.stride(), first.dtype):
            raise LayoutError(f"KV layer {number} is {_words(layer)}, layer 0 is {_words(first)}")
        if layer.element_size() != shape.item_nbytes:
            raise LayoutError(
                f"elements of KV layer {number} have {layer.element_size()} bytes, {shape.dtype} another number"
            )


def _words(layer: Tensor) -> str:
    return f"{[*layer.shape]} {layer.dtype}, strides {[*layer.stride()]}"
