"""What a kernel needs to carry out a move: its tables on the device, its grid, its constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hicache_storage.errors import LayoutError
from hicache_storage.kernels.move import PageMove

# Sixteen bytes move as two elements of eight: that is how Triton makes 128-bit accesses.
_ELEMENTS = {16: torch.int64, 8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
_BLOCK = 1024
_GRID_LIMIT = 65535
_INT32_LIMIT = 2**31


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a gather or scatter kernel.

    Attributes:
        tensors: pages, stretches and moves of `kernels/addressing.py`.
        constants: ``RUN``, ``SLOT``, ``UNIT`` and ``BLOCK``.
    """

    grid: tuple[int, int, int]
    tensors: tuple[Tensor, Tensor, Tensor]
    constants: tuple[int, int, int, int]


class Kernel(Protocol):
    """A function under ``triton.jit``."""

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., object]: ...


def launch(kernel: Kernel, move: PageMove) -> None:
    """Start *kernel* on *move*: once for all layers, or once for all K and once for all V if their rows differ.

    Raises:
        LayoutError: a page is too large for the grid of a launch.

    Cost: copies 24 bytes a page and 16 a stretch to the device, from page-locked memory; does not wait for a GPU.
    """
    device = move.pool.device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        for one in launches(move):
            kernel[one.grid](*one.tensors, *one.constants)


def launches(move: PageMove) -> Iterator[Launch]:
    """Yield what `launch` starts."""
    width = _ELEMENTS[move.unit_nbytes].itemsize
    pages = move.pages.view(_ELEMENTS[move.unit_nbytes])
    moves = _moves(move, width)
    for parts, run, slot in _parts(move):
        stretches = _to_device(_stretches(move, parts, width), move.pool.device)
        elements = move.format.page_tokens * run // width
        block = min(_BLOCK, 1 << (elements - 1).bit_length())
        grid = (-(-elements // block), stretches.shape[0])
        if elements > _INT32_LIMIT - _BLOCK or grid[1] > _GRID_LIMIT:
            raise LayoutError(
                f"{grid[1]} stretches of {elements} elements in a page; a launch takes {_GRID_LIMIT} and {_INT32_LIMIT}"
            )
        for start in range(0, moves.shape[0], _GRID_LIMIT):
            some = moves[start : start + _GRID_LIMIT]
            constants = (run // width, slot // width, move.unit_nbytes, block)
            yield Launch((*grid, some.shape[0]), (pages, stretches, some), constants)


def _parts(move: PageMove) -> list[tuple[list[int], int, int]]:
    """Return K (0) and V (1) with bytes of a run and of a slot: together if those are equal, else one by one."""
    fmt, pool = move.format, move.pool
    k, v = (fmt.k_run_nbytes, pool.k_slot_nbytes), (fmt.v_run_nbytes, pool.v_slot_nbytes)
    if pool.is_mla:
        return [([0], *k)]
    return [([0, 1], *k)] if k == v else [([0], *k), ([1], *v)]


def _stretches(move: PageMove, parts: list[int], width: int) -> Tensor:
    """Return the table of stretches in the order of the host page: (group, layer, K or V)."""
    fmt = move.format
    layers = torch.arange(move.layers.start, move.layers.stop).view(1, -1, 1)
    groups = torch.arange(fmt.groups).view(-1, 1, 1)
    behind = torch.tensor([[0, fmt.v_offset][part] for part in parts])
    runs = torch.tensor([[fmt.k_run_nbytes, fmt.v_run_nbytes][part] for part in parts])
    address = move.pool.addresses[layers, torch.tensor(parts)] + groups * runs
    host = (groups * fmt.layers + layers) * fmt.cell_nbytes + behind
    return torch.stack((address, host // width), dim=-1).view(-1, 2)


def _moves(move: PageMove, width: int) -> Tensor:
    """Return the table of pages on the pool's device."""
    ids = move.page_ids.to(torch.int64)
    rows = torch.arange(ids.numel()) if move.rows is None else move.rows.to(torch.int64)
    tokens = torch.full_like(ids, move.format.page_tokens)
    tokens[-1] = move.tail_tokens
    table = (ids * move.format.page_tokens, rows * (move.format.page_nbytes // width), tokens)
    return _to_device(torch.stack(table, dim=1), move.pool.device)


def _to_device(table: Tensor, device: torch.device) -> Tensor:
    """Return *table* on *device*; from page-locked memory, since a copy from any other may wait for the stream."""
    return table if device.type == "cpu" else table.pin_memory().to(device, non_blocking=True)
