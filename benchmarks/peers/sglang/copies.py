"""SGLang 0.5.23's own copies of pages in plain torch: those that need no GPU kernel.

Its pools' `backup_from_device_all_layer` and `load_to_device_per_layer` call CUDA kernels (`sgl_kernel.kvcacheio`, or
kernels that nvcc compiles at first use) and do not run on a CPU. What does: `get_cpu_copy` and `load_cpu_copy` of its
device pools, by which a retracted request's KV goes to host memory and back, and `get_data_page` and
`set_from_flat_data_page` of its host pools, by which pages go to a storage backend that wants them flat, and back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.runtime_context import get_parallel

from benchmarks.peers.sglang.host_pools import PoolShape, mha_pool
from benchmarks.subject import Subject, Verdict, timed
from benchmarks.workload import Workload


class PeerCopies(Subject):
    """Shuffled pages of a pool that has a quarter more of them, as `benchmarks.subjects.copies` has them."""

    page_cache = "in memory"
    _pool: MHATokenToKVPool | MLATokenToKVPool | MHATokenToKVPoolHost
    _pages: Sequence[object] = ()

    def prepare(self, workload: Workload) -> None:
        torch.set_num_threads(workload.threads)
        self._workload = workload
        self._num_pages = workload.objects + workload.objects // 4 + 1
        generator = torch.Generator().manual_seed(workload.seed)
        self._ids = torch.randperm(self._num_pages, generator=generator)[: workload.objects]
        slots = self._ids[:, None] * workload.page_tokens + torch.arange(workload.page_tokens)
        self._slots = slots.reshape(-1)
        self._make_pool(workload)
        self._wanted = [tensor.clone() for tensor in self._tensors()]

    def clear_memory(self) -> None:
        for tensor in self._tensors():
            tensor.zero_()

    def wrong_objects(self) -> int:
        """Return how many pages are not what they were; pages that were not moved are zero by now."""
        pairs = list(zip(self._tensors(), self._wanted, strict=True))
        return sum(any(not self._is_same(page, *pair) for pair in pairs) for page in self._ids.tolist())

    def wipe(self) -> None:
        self._pages = ()

    def release(self) -> None:
        self._pages = ()
        del self._pool, self._wanted

    def exists(self) -> float:
        raise NotImplementedError

    def store_some(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    def fetch_some(self, numbers: Sequence[int]) -> list[Verdict]:
        raise NotImplementedError

    def _make_pool(self, workload: Workload) -> None:
        raise NotImplementedError

    def _tensors(self) -> list[torch.Tensor]:
        """Return the tensors of the pool."""
        raise NotImplementedError

    def _page_of(self, tensor: torch.Tensor, page: int) -> torch.Tensor:
        """Return one page of one of `_tensors`."""
        tokens = self._workload.page_tokens
        return tensor[page * tokens : (page + 1) * tokens]

    def _is_same(self, page: int, tensor: torch.Tensor, wanted: torch.Tensor) -> bool:
        here, there = (self._page_of(each, page).contiguous().view(torch.uint8) for each in (tensor, wanted))
        return torch.equal(here, there)


class CpuCopy(PeerCopies):
    """Slots of every layer of a device pool to tensors of their own, and back."""

    def __init__(self) -> None:
        self.calls = {"write": "KVCache.get_cpu_copy", "read": "KVCache.load_cpu_copy"}

    def write(self) -> float:
        def copy() -> None:
            self._pages = self._pool.get_cpu_copy(self._slots)

        return timed(copy)

    def read(self) -> float:
        return timed(lambda: self._pool.load_cpu_copy(self._pages, self._slots))

    def _make_pool(self, workload: Workload) -> None:
        sizes = {
            "size": (self._num_pages - 1) * workload.page_tokens,
            "page_size": workload.page_tokens,
            "dtype": torch.bfloat16,
            "layer_num": workload.num_layers,
            "device": "cpu",
            "enable_memory_saver": False,
        }
        if workload.kv_heads:
            self._pool = MHATokenToKVPool(head_num=workload.kv_heads, head_dim=workload.head_dim, **sizes)
        else:
            get_parallel().override_permanently(attn_dcp_size=1, attn_dcp_rank=0)
            rope = workload.head_dim // 9
            self._pool = MLATokenToKVPool(kv_lora_rank=workload.head_dim - rope, qk_rope_head_dim=rope, **sizes)
        generator = torch.Generator().manual_seed(workload.seed)
        for tensor in self._tensors():
            tensor.view(torch.int16).random_(generator=generator)

    def _tensors(self) -> list[torch.Tensor]:
        if self._workload.kv_heads:
            return [*self._pool.k_buffer, *self._pool.v_buffer]
        return list(self._pool.kv_buffer)


class DataPage(PeerCopies):
    """Pages of a host pool to flat tensors of the same order, and back; the order within a page is the pool's."""

    def __init__(self) -> None:
        self.calls = {
            "write": "MHATokenToKVPoolHost.get_data_page",
            "read": "MHATokenToKVPoolHost.set_from_flat_data_page",
        }

    def write(self) -> float:
        first = self._first_slots()

        def copy() -> None:
            self._pages = [self._pool.get_data_page(slot) for slot in first]

        return timed(copy)

    def read(self) -> float:
        pairs = list(zip(self._first_slots(), self._pages, strict=True))

        def copy() -> None:
            for slot, page in pairs:
                self._pool.set_from_flat_data_page(slot, page)

        return timed(copy)

    def _first_slots(self) -> list[int]:
        return (self._ids * self._workload.page_tokens).tolist()

    def _make_pool(self, workload: Workload) -> None:
        """Make a pool of at least as many pages as layers: with fewer, SGLang's page_head pool cannot be built."""
        shape = PoolShape(
            layers=workload.num_layers,
            heads=workload.kv_heads,
            head_dim=workload.head_dim,
            page_tokens=workload.page_tokens,
            pages=max(self._num_pages, workload.num_layers),
        )
        self._pool = mha_pool(shape, workload.host_layout)
        generator = torch.Generator().manual_seed(workload.seed)
        self._pool.kv_buffer.view(torch.int16).random_(generator=generator)

    def _tensors(self) -> list[torch.Tensor]:
        return [self._pool.kv_buffer]

    def _page_of(self, tensor: torch.Tensor, page: int) -> torch.Tensor:
        tokens = self._workload.page_tokens
        here = slice(page * tokens, (page + 1) * tokens)
        match self._workload.host_layout:
            case "layer_first":
                return tensor[:, :, here]
            case "page_first":
                return tensor[:, here]
        return tensor[:, page]
