"""SGLang's cache controller with a storage backend: what its threads make of the backend's calls.

Nothing is replaced: HybridCacheController, its queues and threads, its host pool and its backend factory. Only the
scheduler is missing. A write goes from `write_storage` to its acknowledgement; a read from `prefetch`, through page
hashes, existence and the host slots that a scheduler would reserve, to the acknowledgement of the last page.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence

import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from benchmarks.peers.sglang.host_pools import HostPool, PoolShape, mha_pool, mla_pool
from benchmarks.subject import Subject, SubjectFailed, Verdict, timed
from benchmarks.workload import Workload

_DEADLINE_S = 120.0


class Controlled(Subject):
    """One prompt of all objects, stored and fetched by the controller of a rank of one.

    Args:
        backend: ``file`` (SGLang's own), ``bare`` or ``ours``, both as plug-ins of its ``dynamic`` backend.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self.calls = {
            "write": "HybridCacheController.write_storage to ack_backup_queue",
            "read": "HybridCacheController.prefetch to ack_prefetch_queue",
        }

    def prepare(self, workload: Workload) -> None:
        self._workload = workload
        set_global_server_args_for_scheduler(ServerArgs(model_path="dummy", page_size=workload.page_tokens))
        self._host_pool = _host_pool(workload)
        self._slots = self._host_pool.alloc(workload.objects * workload.page_tokens)
        self._tokens = array("q", range(1, 1 + workload.objects * workload.page_tokens))
        self._controller = self._open(workload)
        key = RadixKey(self._tokens)
        self._hashes = get_storage_hash_str(key, None, page_size=workload.page_tokens)
        self._bytes = self._host_pool.kv_buffer.view(torch.uint8).view(-1)
        generator = torch.Generator().manual_seed(workload.seed)
        self._bytes.copy_(torch.randint(0, 256, (self._bytes.numel(),), dtype=torch.uint8, generator=generator))
        self._wanted = self._bytes.clone()

    def write(self) -> float:
        self._bytes.copy_(self._wanted)
        return timed(self._store)

    def read(self) -> float:
        return timed(self._fetch)

    def clear_memory(self) -> None:
        self._bytes.zero_()

    def wrong_objects(self) -> int:
        pages = self._slots[:: self._workload.page_tokens].tolist()
        whole, layout = self._host_pool.kv_buffer, self._host_pool.layout
        wanted = self._wanted.view(whole.dtype).view(whole.shape)
        return sum(not _same_page(whole, wanted, layout, slot, self._workload) for slot in pages)

    def wipe(self) -> None:
        self._controller.storage_backend.clear()

    def exists(self) -> float:
        raise NotImplementedError

    def store_some(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    def fetch_some(self, numbers: Sequence[int]) -> list[Verdict]:
        raise NotImplementedError

    def release(self) -> None:
        self._controller.detach_storage_backend()
        del self._controller, self._bytes, self._wanted, self._host_pool

    def _store(self) -> None:
        self._controller.write_storage(self._slots, self._tokens, hash_value=self._hashes)
        done = self._controller.ack_backup_queue.get(timeout=_DEADLINE_S)
        if done.completed_tokens != len(self._tokens):
            raise SubjectFailed(f"{done.completed_tokens} of {len(self._tokens)} tokens were stored")

    def _fetch(self) -> None:
        self._controller.prefetch(CacheRequestHandle("prompt", 0), RadixKey(self._tokens))
        operation = self._controller.prefetch_hit_queue.get(timeout=_DEADLINE_S)
        operation.host_indices = self._slots[: operation.storage_hit_count]
        self._controller.prefetch_buffer.put(operation)
        loaded, is_done = 0, False
        while not is_done:
            ack = self._controller.ack_prefetch_queue.get(timeout=_DEADLINE_S)
            loaded, is_done = max(loaded, ack.completed_tokens or 0), ack.completed_req
        if loaded != len(self._tokens):
            raise SubjectFailed(f"{loaded} of {len(self._tokens)} tokens came from the store")

    def _open(self, workload: Workload) -> HybridCacheController:
        device_pool = _device_pool(workload)
        allocator = TokenToKVPoolAllocator(
            size=workload.page_tokens, dtype=torch.bfloat16, device="cpu", kvcache=device_pool, need_sort=False
        )
        entry = PoolEntry(
            name=PoolName.KV,
            host_pool=self._host_pool,
            device_pool=device_pool,
            layer_mapper=lambda layer: layer,
            is_primary_index_anchor=True,
        )
        with get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1):
            return HybridCacheController(
                allocator,
                HostPoolGroup([entry]),
                workload.page_tokens,
                None,
                load_cache_event=threading.Event(),
                write_policy="write_through",
                io_backend="direct",
                storage_backend="file" if self._backend == "file" else "dynamic",
                prefetch_threshold=workload.page_tokens,
                model_name="demo/model",
                storage_backend_extra_config=self._extra_config(workload),
            )

    def _extra_config(self, workload: Workload) -> dict[str, object]:
        match self._backend:
            case "file":
                return {"file_storage_path": workload.folder}
            case "bare":
                plug_in = {"module_path": "benchmarks.peers.sglang.bare_plugin", "class_name": "BareFiles"}
                own: dict[str, object] = {"dir": workload.folder}
            case _:
                plug_in = {
                    "module_path": "hicache_storage.engine_integration.adapters.sglang",
                    "class_name": "HiCacheUnified",
                }
                store = {"path": workload.folder, "io_threads": workload.threads}
                own = {"backend": "file", "extra_config": store}
        return {"backend_name": self._backend, "interface_v1": 1, **plug_in, **own}


def _shape(workload: Workload) -> PoolShape:
    return PoolShape(
        layers=workload.num_layers,
        heads=workload.kv_heads or 1,
        head_dim=workload.head_dim,
        page_tokens=workload.page_tokens,
        pages=workload.objects + 1,
    )


def _host_pool(workload: Workload) -> HostPool:
    make = mha_pool if workload.kv_heads else mla_pool
    return make(_shape(workload), workload.host_layout)


def _device_pool(workload: Workload) -> MHATokenToKVPool | MLATokenToKVPool:
    """Return the smallest pool of the right kind: nothing is copied to a device here."""
    sizes = {
        "size": workload.page_tokens,
        "page_size": workload.page_tokens,
        "dtype": torch.bfloat16,
        "layer_num": workload.num_layers,
        "device": "cpu",
        "enable_memory_saver": False,
    }
    if workload.kv_heads:
        return MHATokenToKVPool(head_num=workload.kv_heads, head_dim=workload.head_dim, **sizes)
    rope = workload.head_dim // 9
    return MLATokenToKVPool(kv_lora_rank=workload.head_dim - rope, qk_rope_head_dim=rope, **sizes)


def _same_page(got: torch.Tensor, wanted: torch.Tensor, layout: str, slot: int, workload: Workload) -> bool:
    """Return whether the page that starts at *slot* is the same in two pools."""
    axis = 1 if workload.kv_heads else 0
    first, count = (slot, workload.page_tokens) if layout == "page_first" else (slot // workload.page_tokens, 1)
    pages = (pool.narrow(axis, first, count).contiguous().view(torch.uint8) for pool in (got, wanted))
    return torch.equal(*pages)
