"""How a client of the store gets at pages of a host pool: where they lie, or through memory in which they are arranged.

A page is named by its first slot in the pool, as the engine's host indices do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Protocol, Self

import torch
from torch import Tensor

from hicache_storage.engine_integration.adapters.sglang.facts import PoolFacts
from hicache_storage.engine_integration.page_store import PageRuns, PageStore, ScatteredPage
from hicache_storage.kernels.relayout import EngineHostPool, from_page_unified, to_page_unified
from hicache_storage.layout import Grid, KVShape, Shard, ShardLayout
from hicache_storage.layout.host_pool_layout import PAGE_UNIFIED, HostPoolLayout
from hicache_storage.types import MISS, Outcome

_MIN_RUN_NBYTES = 4096
"""Runs that are shorter on average cost more in calls than a copy costs in bytes."""


class HostPages(Protocol):
    """The pages of one part of a host pool. Thread-safe."""

    def read(
        self, client: PageStore, hashes: Sequence[str], slots: Sequence[int], prefix: Sequence[str]
    ) -> list[Outcome]:
        """Fill the pages at *slots*, as `PageStore.read_pages` does; pages behind a miss may not be tried."""
        ...

    def write(
        self, client: PageStore, hashes: Sequence[str], slots: Sequence[int], prefix: Sequence[str]
    ) -> list[Outcome]:
        """Store the pages at *slots*, as `PageStore.write_pages` does."""
        ...

    def memory(self) -> list[memoryview]:
        """Return the memory that lasts and that transfers go to and come from."""
        ...


def flat_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor in host memory; they are the tensor's own."""
    return tensor.view(-1).view(torch.uint8).numpy().data


class PagesInPlace:
    """Pages whose bytes lie in the pool in the order of their objects, in one run or in several.

    Args:
        memory: the pool's.
        runs: those of its first page.
        page_nbytes: from a run to the same one of the next page.
    """

    def __init__(self, memory: memoryview, runs: PageRuns, page_nbytes: int, page_tokens: int) -> None:
        self._memory = memory
        self._runs = runs
        self._page_nbytes = page_nbytes
        self._page_tokens = page_tokens

    @classmethod
    def of(cls, pool: PoolFacts, layers: range, group_heads: int, buffer: Tensor) -> Self | None:
        """Return the pages that *layers* of a pool make, or None if their bytes have to be arranged.

        Args:
            group_heads: heads of a head group of the pages; 0 for MLA.
        """
        if pool.layout == PAGE_UNIFIED and not pool.is_mla and buffer.shape[5] != group_heads:
            return None
        host = _whole_pool(pool, group_heads)
        runs, following = (_page_runs(host, page, layers) for page in (0, min(1, pool.num_pages - 1)))
        if runs is None or following is None:
            return None
        found = PageRuns(runs)
        if len(found) > 1 and found.nbytes < _MIN_RUN_NBYTES * len(found):
            return None
        return cls(flat_bytes(buffer), found, following[0][0] - runs[0][0], pool.page_tokens)

    def read(
        self, client: PageStore, hashes: Sequence[str], slots: Sequence[int], prefix: Sequence[str]
    ) -> list[Outcome]:
        return client.read_pages(hashes, self._pages(slots), prefix=prefix)

    def write(
        self, client: PageStore, hashes: Sequence[str], slots: Sequence[int], prefix: Sequence[str]
    ) -> list[Outcome]:
        return client.write_pages(hashes, self._pages(slots), prefix=prefix)

    def memory(self) -> list[memoryview]:
        return [self._memory]

    def _pages(self, slots: Sequence[int]) -> list[memoryview | ScatteredPage]:
        starts = [slot // self._page_tokens * self._page_nbytes for slot in slots]
        if len(self._runs) > 1:
            return [ScatteredPage(self._memory, self._runs, start) for start in starts]
        ((offset, length),) = self._runs.span(0, self._runs.nbytes)
        return [self._memory[start + offset : start + offset + length] for start in starts]


class ArrangedPages:
    """Pages that are copied between the pool's order and page_unified order on their way.

    Each direction has memory for two turns of pages: one is copied while the other is read or written.

    Args:
        pool: the part's layers in the engine's tensors.
        copier: two threads or more.
    """

    def __init__(
        self, pool: EngineHostPool, layout: ShardLayout, scratch_nbytes: int, copier: ThreadPoolExecutor
    ) -> None:
        self._pool = pool
        self._page_tokens = layout.shape.page_tokens
        self._group_heads = layout.group_heads
        self._scratch = {way: _Scratch(scratch_nbytes, layout.page_nbytes) for way in ("read", "write")}
        self._copier = copier

    def read(
        self, client: PageStore, hashes: Sequence[str], slots: Sequence[int], prefix: Sequence[str]
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        scratch = self._scratch["read"]
        with scratch.lock, _finished() as copies:
            for turn in scratch.turns(len(hashes)):
                if len(copies) > 1:
                    copies[-2].result()
                pages, views = scratch.of_turn(turn)
                front = [*prefix, *hashes[: turn.start]]
                found = client.read_pages(hashes[turn.start : turn.stop], views, prefix=front)
                outcomes += found
                hits = [row for row, outcome in enumerate(found) if outcome]
                ids = [slots[turn.start + row] for row in hits]
                copies.append(self._copier.submit(self._fetch, pages, hits, ids))
                if len(hits) < len(found):
                    break
        return outcomes + [MISS] * (len(hashes) - len(outcomes))

    def write(
        self, client: PageStore, hashes: Sequence[str], slots: Sequence[int], prefix: Sequence[str]
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        scratch = self._scratch["write"]
        turns = scratch.turns(len(hashes))
        with scratch.lock, _finished() as copies:
            for turn in turns:
                for ahead in turns[len(copies) : len(outcomes) // scratch.rows + 2]:
                    pages, _ = scratch.of_turn(ahead)
                    copies.append(self._copier.submit(self._gather, pages, slots[ahead.start : ahead.stop]))
                copies[turn.start // scratch.rows].result()
                front = [*prefix, *hashes[: turn.start]]
                outcomes += client.write_pages(hashes[turn.start : turn.stop], scratch.of_turn(turn)[1], prefix=front)
                if not all(outcomes):
                    break
        return outcomes + outcomes[-1:] * (len(hashes) - len(outcomes))

    def memory(self) -> list[memoryview]:
        return [flat_bytes(half) for scratch in self._scratch.values() for half in scratch.halves]

    def _fetch(self, pages: Tensor, rows: Sequence[int], slots: Sequence[int]) -> None:
        if rows:
            from_page_unified(
                pages, self._pool, self._ids(slots), group_heads=self._group_heads, rows=torch.tensor(rows)
            )

    def _gather(self, pages: Tensor, slots: Sequence[int]) -> None:
        to_page_unified(self._pool, self._ids(slots), pages, group_heads=self._group_heads)

    def _ids(self, slots: Sequence[int]) -> Tensor:
        return torch.tensor(slots) // self._page_tokens


class _Scratch:
    """Two halves of memory for pages in page_unified order."""

    def __init__(self, nbytes: int, page_nbytes: int) -> None:
        self.lock = Lock()
        self.rows = max(1, nbytes // 2 // page_nbytes)
        self._page_nbytes = page_nbytes
        # Written once here: the first touch of memory costs as much as reading into it, and the first prompt would pay.
        self.halves = [torch.empty(self.rows, page_nbytes, dtype=torch.uint8).zero_() for _ in range(2)]

    def turns(self, pages: int) -> list[range]:
        """Return which pages go together."""
        return [range(start, min(start + self.rows, pages)) for start in range(0, pages, self.rows)]

    def of_turn(self, turn: range) -> tuple[Tensor, list[memoryview]]:
        """Return the memory of a turn's pages, as rows and one by one: every other turn has the same."""
        half = self.halves[turn.start // self.rows % 2]
        flat, width = flat_bytes(half), self._page_nbytes
        return half, [flat[row * width : (row + 1) * width] for row in range(len(turn))]


@contextmanager
def _finished() -> Iterator[list[Future[None]]]:
    """Yield a list for what is under way; nothing of it is when the block is left.

    Raises what a copy raised, unless the block raised first.
    """
    copies: list[Future[None]] = []
    try:
        yield copies
    finally:
        errors = [copy.exception() for copy in copies]
    for error in errors:
        if error is not None:
            raise error


def _whole_pool(pool: PoolFacts, group_heads: int) -> HostPoolLayout:
    """Return the pool as if it were a model of its own whose head groups are *group_heads* wide."""
    heads = range(pool.heads)
    if pool.is_mla:
        shape = KVShape.mla(
            num_layers=pool.layers, latent_dim=pool.head_dim, dtype=pool.dtype, page_tokens=pool.page_tokens
        )
    else:
        shape = KVShape.mha(
            num_layers=pool.layers,
            num_kv_heads=pool.heads,
            head_dim=pool.head_dim,
            v_head_dim=pool.v_head_dim,
            dtype=pool.dtype,
            page_tokens=pool.page_tokens,
        )
    page = ShardLayout(shape, Grid(pool.layers, group_heads), Shard(range(pool.layers), heads))
    return HostPoolLayout(name=pool.layout, page=page, num_pages=pool.num_pages)


def _page_runs(host: HostPoolLayout, page: int, layers: range) -> list[tuple[int, int]] | None:
    """Return the runs of a page, head group by head group, or None if there is no such list."""
    runs: list[tuple[int, int]] = []
    for group in range(host.page.groups):
        of_group = host.chunk_runs(page, layers, group)
        if of_group is None:
            return None
        runs += of_group
    return runs
