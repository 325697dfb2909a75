"""Where vLLM keeps a row of a block, and that place measured with vLLM's own code.

A row is K or V of one token of one head. Attention backends lay the rows of a block as suits their kernels: token by
token, head by head, transposed, or packed in tiles for a matrix unit, and the same engine packs differently on
another CPU. Nothing here assumes one of those: the backend is asked to write known rows into a scratch block, and
the places are read off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Self, TypeAlias

import torch
from torch import Tensor

from hicache_storage.errors import LayoutError

WriteBlock: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Stores K and V, ``[N, H, D]`` float32, in a scratch block; returns that block's memory as flat float32."""

WriteLatent: TypeAlias = Callable[[Tensor], Tensor]
"""The same for MLA's latent rows, ``[N, D]``."""

_WriteParts: TypeAlias = Callable[[Tensor], Tensor]

_DIGITS = 8
"""Rows are told apart by their digits to this base: 0 to 7 are exact in every KV dtype, fp8 included."""


@dataclass(frozen=True, slots=True)
class Axis:
    """How far apart the entries of one axis lie, in elements: an axis in several levels if one stride does not do.

    Attributes:
        sizes: entries of each level, the outermost first.
        strides: distance of two entries of each level.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, offsets: Sequence[int]) -> Self:
        """Return the axis whose entries lie at *offsets*, counted from the first.

        Raises:
            LayoutError: no number of levels describes them.
        """
        levels = _levels([offset - offsets[0] for offset in offsets])
        return cls(tuple(size for size, _ in levels), tuple(stride for _, stride in levels))

    @property
    def length(self) -> int:
        return prod(self.sizes)


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where the rows of K, or of V, lie in a block.

    Attributes:
        start: element of the first head's first token's row, counted from the start of the block.
        tokens: axis of the tokens of a block.
        heads: axis of this rank's heads; one level.
        dims: axis of the elements of a row.
    """

    start: int
    tokens: Axis
    heads: Axis
    dims: Axis

    def cells(self, layer: Tensor) -> Tensor:
        """Return the rows of every block of *layer* as ``[B, *tokens, H, *dims]``, a view of its memory.

        Args:
            layer: vLLM's tensor of one layer, its first axis the blocks.
        """
        sizes = (layer.shape[0], *self.tokens.sizes, *self.heads.sizes, *self.dims.sizes)
        strides = (layer.stride(0), *self.tokens.strides, *self.heads.strides, *self.dims.strides)
        return layer.as_strided(sizes, strides, int(layer.storage_offset()) + self.start)


def measure_places(write: WriteBlock, block_tokens: int, num_heads: int, head_dim: int) -> tuple[RowPlace, RowPlace]:
    """Return where K's and V's rows lie in the blocks that *write* writes.

    Raises:
        LayoutError: the rows come back changed, not at all, or not on a regular grid.

    Cost: some ten blocks are written.
    """
    shape = (2, block_tokens, num_heads, head_dim)
    keys, values = _measured(lambda parts: write(parts[0].contiguous(), parts[1].contiguous()), shape)
    return keys, values


def measure_latent(write: WriteLatent, block_tokens: int, row: int) -> RowPlace:
    """Return where MLA's rows lie in the blocks that *write* writes. Raises and costs as `measure_places`."""
    (place,) = _measured(lambda parts: write(parts[0, :, 0].contiguous()), (1, block_tokens, 1, row))
    return place


def _measured(write: _WriteParts, shape: tuple[int, int, int, int]) -> list[RowPlace]:
    """Return the places of each part of ``[parts, N, H, D]``, which *write* stores."""
    indices = [torch.arange(size).view([-1 if axis == at else 1 for at in range(4)]) for axis, size in enumerate(shape)]
    number = (indices[0] * shape[1] + indices[1]) * shape[2] + indices[2]
    number = (number * shape[3] + indices[3] + 1).expand(shape)
    found = _read_back(write, number)
    order = torch.full((number.numel() + 1,), -1, dtype=torch.int64)
    order[found] = torch.arange(found.numel())
    places = order[1:].view(shape)
    if (places < 0).any() or torch.unique(places).numel() != places.numel():
        missing = int((places < 0).sum())
        raise LayoutError(f"of {places.numel()} elements of a block {missing} are not found again in vLLM's KV cache")
    return [_place(part) for part in places]


def _read_back(write: _WriteParts, number: Tensor) -> Tensor:
    """Return the element number found at each element of the block's memory; 0 where nothing was written."""
    found = torch.zeros((), dtype=torch.float64)
    weight = 1
    while weight <= number.numel():
        memory = write((number // weight % _DIGITS).to(torch.float32)).double()
        if not torch.equal(memory, memory.round()) or memory.min() < 0 or memory.max() >= _DIGITS:
            raise LayoutError(
                "vLLM's KV cache does not give back the values that were written: its format is not known"
            )
        found = found + memory * weight
        weight *= _DIGITS
    return found.long()


def _place(places: Tensor) -> RowPlace:
    """Return the axes of ``[N, H, D]`` element offsets, which must be sums of one offset of each axis."""
    start = int(places[0, 0, 0])
    tokens, heads, dims = places[:, 0, 0], places[0, :, 0], places[0, 0, :]
    if not torch.equal(places, tokens[:, None, None] + heads[None, :, None] + dims[None, None, :] - 2 * start):
        raise LayoutError("the rows of vLLM's KV blocks lie on no regular grid")
    found = RowPlace(start, *(Axis.of(offsets.tolist()) for offsets in (tokens, heads, dims)))
    if len(found.heads.sizes) != 1:
        raise LayoutError(f"the heads of vLLM's KV blocks lie in levels of {found.heads.sizes}")
    return found


def _levels(offsets: list[int]) -> list[tuple[int, int]]:
    """Return (size, stride) of each level, the outermost first."""
    if len(offsets) == 1:
        return [(1, 1)]
    stride = offsets[1]
    run = next((at for at, offset in enumerate(offsets) if offset != at * stride), len(offsets))
    outer = offsets[::run]
    if len(offsets) % run or any(offset != outer[at // run] + at % run * stride for at, offset in enumerate(offsets)):
        raise LayoutError(f"no strides lead to the offsets {offsets[:16]}")
    return [*(_levels(outer) if len(outer) > 1 else []), (run, stride)]
