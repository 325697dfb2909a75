"""A move as a few indexed copies between views of equal shape, for plain torch.

    pool   [places, tokens, units]   every place where a stretch may start; places overlap
    host   [N, tokens, units]        stretch n of the host pages: one head group in one layer's K or V
    where  [N]                       host stretch n is the pool's place where[n]

A gather is `torch.index_select`, a scatter `index_copy_`; both move units without looking at them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from hicache_storage.kernels.move import PageMove
from hicache_storage.kernels.pool import UNIT_DTYPES
from hicache_storage.kernels.stack import Stack


class Copies(NamedTuple):
    """What one call copies; see the module's drawing."""

    pool: Tensor
    where: Tensor
    host: Tensor


class _Pages(NamedTuple):
    """Pages whose host rows follow one another and of which equally many tokens move."""

    ids: Tensor
    first_row: int
    tokens: int


def copies(move: PageMove) -> Iterator[Copies]:
    """Yield what makes up *move*. For pages whose host rows follow one another that is one call if the pool is a
    stack and all its layers move, else one for each layer's K and V.
    """
    views = _Views(move)
    stack = move.pool.stack if len(move.layers) == move.format.layers else None
    for pages in _split(move):
        if stack is not None:
            yield views.of_all_layers(pages, stack)
        else:
            yield from views.of_each_layer(pages)


def _split(move: PageMove) -> Iterator[_Pages]:
    count = move.page_ids.numel()
    ids = move.page_ids.to(torch.int64)
    rows = range(count) if move.rows is None else move.rows.tolist()
    stops = {count}
    if move.rows is not None:
        stops |= {i for i in range(1, count) if rows[i] != rows[i - 1] + 1}
    if move.tail_tokens < move.format.page_tokens and count > 1:
        stops.add(count - 1)
    start = 0
    for stop in sorted(stops):
        tokens = move.tail_tokens if stop == count else move.format.page_tokens
        yield _Pages(ids[start:stop], rows[start], tokens)
        start = stop


class _Views:
    """The tensors of one move in units of its width; distances of the host pages are in units, too."""

    def __init__(self, move: PageMove) -> None:
        pool, fmt, width = move.pool, move.format, move.unit_nbytes
        self._unit, self._width = UNIT_DTYPES[width], width
        self._tensors = pool.units
        self._layers = move.layers
        self._groups, self._page_tokens = fmt.groups, fmt.page_tokens
        self._run_nbytes = [fmt.k_run_nbytes, fmt.v_run_nbytes][: 1 if pool.is_mla else 2]
        self._slot_nbytes = [pool.k_slot_nbytes, pool.v_slot_nbytes]
        self._host = move.pages.view(self._unit)
        self._origin = self._host.storage_offset()
        self._cell, self._v_offset = fmt.cell_nbytes // width, fmt.v_offset // width
        self._group, self._page = fmt.layers * self._cell, fmt.page_nbytes // width

    def of_all_layers(self, pages: _Pages, stack: Stack) -> Copies:
        """Return one call for all layers: host pages have no gaps, and the order is (page, group, layer, K/V)."""
        starts, step = self._starts(pages.ids, 0, stack.divisor)
        where = (starts.view(-1, 1) + stack.distances // step).flatten()
        shape = (where.numel(), pages.tokens, self._run_nbytes[0] // self._width)
        start = self._origin + pages.first_row * self._page
        host = self._host.as_strided(shape, (self._page_tokens * shape[2], shape[2], 1), start)
        places = int(where.max()) + 1
        strides = (step // self._width, self._slot_nbytes[0] // self._width, 1)
        pool = stack.memory.view(self._unit).as_strided((places, *shape[1:]), strides)
        return Copies(pool, where.to(pool.device), host)

    def of_each_layer(self, pages: _Pages) -> Iterator[Copies]:
        """Yield a call for each layer's K and V: a stretch for each page and group, a group's layers apart."""
        for part, run_nbytes in enumerate(self._run_nbytes):
            where, step = self._starts(pages.ids, part, 0)
            shape = (where.numel(), pages.tokens, run_nbytes // self._width)
            places = int(where.max()) + 1
            strides = (step // self._width, self._slot_nbytes[part] // self._width, 1)
            where = where.to(self._host.device)
            for layer in self._layers:
                start = self._origin + pages.first_row * self._page + layer * self._cell + part * self._v_offset
                tensor = self._tensors[layer * len(self._run_nbytes) + part].view(self._unit)
                pool = tensor.as_strided((places, *shape[1:]), strides)
                yield Copies(pool, where, self._host.as_strided(shape, (self._group, shape[2], 1), start))

    def _starts(self, ids: Tensor, part: int, divisor: int) -> tuple[Tensor, int]:
        """Return where the stretches of a tensor start, in steps by (page, group), and the bytes of a step.

        Args:
            divisor: the bytes of a step divide it.
        """
        run, page = self._run_nbytes[part], self._page_tokens * self._slot_nbytes[part]
        if self._groups == 1:
            step = gcd(page, divisor)
            return ids * (page // step), step
        step = gcd(page, run, divisor)
        return (ids.view(-1, 1) * (page // step) + torch.arange(self._groups) * (run // step)).flatten(), step
