"""Copies of pages within memory: this project's gather, scatter and relayout, and a plain copy of the same bytes.

"write" fills page_unified pages from a pool, "read" fills the pool from them, all pages in one call, in an order
that is not that of the pool. No file and no server takes part; torch has as many threads as the workload.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
import xxhash
from torch import Tensor

from benchmarks.subject import Subject, Verdict, timed
from benchmarks.workload import Workload
from hicache_storage.kernels import DevicePool, gather_pages, scatter_pages
from hicache_storage.kernels.relayout import EngineHostPool, from_page_unified, to_page_unified

IN_MEMORY = "in memory"


class Copies(Subject):
    """A subject that stores nothing: it has a source and a target."""

    page_cache = IN_MEMORY

    def prepare(self, workload: Workload) -> None:
        torch.set_num_threads(workload.threads)
        self._workload = workload
        self.version = torch.__version__

    def exists(self) -> float:
        raise NotImplementedError

    def store_some(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    def fetch_some(self, numbers: Sequence[int]) -> list[Verdict]:
        raise NotImplementedError


class TensorCopy(Copies):
    """The limit: one `copy_` between two tensors."""

    def __init__(self) -> None:
        self.calls = {"write": "torch.Tensor.copy_", "read": "torch.Tensor.copy_"}

    def prepare(self, workload: Workload) -> None:
        super().prepare(workload)
        self._pool = random_bytes(workload.nbytes, workload.seed)
        self._pages = torch.zeros_like(self._pool)
        self._digest = digest([self._pool])

    def write(self) -> float:
        return timed(lambda: self._pages.copy_(self._pool))

    def read(self) -> float:
        return timed(lambda: self._pool.copy_(self._pages))

    def clear_memory(self) -> None:
        self._pool.zero_()

    def wrong_objects(self) -> int:
        return 0 if digest([self._pool]) == digest([self._pages]) == self._digest else self._workload.objects

    def wipe(self) -> None:
        self._pages.zero_()

    def release(self) -> None:
        del self._pool, self._pages


class PagedCopies(Copies):
    """Pages of a pool that has a quarter more of them, in shuffled order."""

    def prepare(self, workload: Workload) -> None:
        super().prepare(workload)
        self._num_pages = workload.objects + workload.objects // 4 + 1
        generator = torch.Generator().manual_seed(workload.seed)
        self._ids = torch.randperm(self._num_pages, generator=generator)[: workload.objects]
        self._pages = torch.zeros(workload.objects, workload.object_nbytes, dtype=torch.uint8)
        self._make_pool(workload)
        self._digests = [digest(self._cells(page)) for page in self._ids.tolist()]

    def wrong_objects(self) -> int:
        """Return how many pages differ in the pool or lie in another order in the page_unified pages."""
        wanted = zip(self._ids.tolist(), self._pages, self._digests, strict=True)
        return sum(not digest(self._cells(page)) == digest([row]) == right for page, row, right in wanted)

    def wipe(self) -> None:
        self._pages.zero_()

    @abstractmethod
    def _make_pool(self, workload: Workload) -> None:
        """Fill a pool of ``_num_pages`` pages with random bytes."""

    @abstractmethod
    def _planes(self, page: int, layer: int) -> Sequence[Tensor]:
        """Return K and V, or the latent rows, of one layer of one page as `[token, head, dim]`."""

    def _cells(self, page: int) -> Iterator[Tensor]:
        """Yield what a page has in page_unified order, by slicing alone."""
        heads = max(self._workload.kv_heads, 1)
        width = self._workload.group_heads or heads
        for first in range(0, heads, width):
            for layer in range(self._workload.num_layers):
                for plane in self._planes(page, layer):
                    yield plane[:, first : first + width]


class DeviceCopies(PagedCopies):
    """gather_pages and scatter_pages on a pool of per-layer tensors."""

    def __init__(self) -> None:
        self.calls = {"write": "gather_pages", "read": "scatter_pages"}

    def write(self) -> float:
        return timed(lambda: gather_pages(self._pool, self._ids, self._pages, group_heads=self._width))

    def read(self) -> float:
        return timed(lambda: scatter_pages(self._pages, self._pool, self._ids, group_heads=self._width))

    def clear_memory(self) -> None:
        for tensor in self._pool.keys + self._pool.values:
            tensor.zero_()

    def release(self) -> None:
        del self._pool, self._pages

    def _make_pool(self, workload: Workload) -> None:
        slots, heads = self._num_pages * workload.page_tokens, max(workload.kv_heads, 1)
        tensors = [
            random_bytes(slots * heads * workload.head_dim * 2, seed).view(torch.bfloat16).view(slots, heads, -1)
            for seed in range(workload.num_layers * (2 if workload.kv_heads else 1))
        ]
        self._width = workload.group_heads or workload.kv_heads
        self._pool = DevicePool.of_layers(
            tensors[: workload.num_layers], tensors[workload.num_layers :], workload.page_tokens
        )

    def _planes(self, page: int, layer: int) -> Sequence[Tensor]:
        tokens = self._workload.page_tokens
        here = slice(page * tokens, (page + 1) * tokens)
        return [tensors[layer][here] for tensors in (self._pool.keys, self._pool.values) if tensors]


class HostRelayout(PagedCopies):
    """to_page_unified and from_page_unified on a host pool of one tensor in an engine's layout."""

    def __init__(self) -> None:
        self.calls = {"write": "to_page_unified", "read": "from_page_unified"}

    def write(self) -> float:
        return timed(lambda: to_page_unified(self._pool, self._ids, self._pages, group_heads=self._width))

    def read(self) -> float:
        return timed(lambda: from_page_unified(self._pages, self._pool, self._ids, group_heads=self._width))

    def clear_memory(self) -> None:
        self._kv_buffer.zero_()

    def release(self) -> None:
        del self._pool, self._kv_buffer, self._pages

    def _make_pool(self, workload: Workload) -> None:
        sizes = {"page": self._num_pages, "layer": workload.num_layers, "token": workload.page_tokens}
        shape = {
            "layer_first": (sizes["layer"], sizes["page"] * sizes["token"], workload.kv_heads),
            "page_first": (sizes["page"] * sizes["token"], sizes["layer"], workload.kv_heads),
            "page_first_direct": (sizes["page"], sizes["layer"], sizes["token"], workload.kv_heads),
            "page_head": (sizes["page"], workload.kv_heads, sizes["token"], sizes["layer"]),
        }[workload.host_layout]
        flat = random_bytes(self._num_pages * workload.object_nbytes, workload.seed).view(torch.bfloat16)
        self._kv_buffer = flat.view(2, *shape, workload.head_dim)
        self._width = workload.group_heads or workload.kv_heads
        self._pool = EngineHostPool.of(
            workload.host_layout, self._kv_buffer, page_tokens=workload.page_tokens, is_mla=False
        )

    def _planes(self, page: int, layer: int) -> Sequence[Tensor]:
        return [part[page, layer] for part in self._pool.parts]


def random_bytes(nbytes: int, seed: int) -> Tensor:
    """Return the same bytes for the same seed, touched."""
    words = torch.empty(-(-nbytes // 8), dtype=torch.int64)
    return words.random_(generator=torch.Generator().manual_seed(seed)).view(torch.uint8)[:nbytes]


def digest(parts: Iterator[Tensor] | Sequence[Tensor]) -> int:
    """Return a hash of the bytes of *parts*, one behind the other."""
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part.contiguous().view(torch.uint8).numpy().data)
    return state.intdigest()
