"""SGLang 0.5.23: HiCacheFile over its own MHA host pool, layout page_first, the pages' v2 calls.

The pool is built from tensors of the workload's geometry on the CPU, not pinned. A page is one object.
Environment: SGLANG_SRC is the unpacked wheel; the folder of this file holds a stand-in for torchvision.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName, PoolTransfer
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage import StorageBackendFactory

from benchmarks.peers.sglang.controlled import Controlled
from benchmarks.peers.sglang.copies import CpuCopy, DataPage
from benchmarks.peers.sglang.host_pools import PoolShape, mha_pool
from benchmarks.peers.sglang.trees import SGLangTree
from benchmarks.serve import serve
from benchmarks.subject import Subject, Verdict, timed
from benchmarks.workload import Workload


def host_pool(workload: Workload) -> MHATokenToKVPoolHost:
    """Return SGLang's page_first host pool with room for every object."""
    shape = PoolShape(
        layers=workload.num_layers,
        heads=workload.kv_heads,
        head_dim=workload.head_dim,
        page_tokens=workload.page_tokens,
        pages=workload.objects + 1,
    )
    return mha_pool(shape, "page_first")


class SGLangFile(Subject):
    """Storage backend "file", as SGLang's own factory makes it; single-threaded by design."""

    def __init__(self, exists: str) -> None:
        self._exists = exists
        self.calls = {
            "write": "HiCacheFile.batch_set_v2",
            "read": "HiCacheFile.batch_get_v2",
            "exists": f"HiCacheFile.{exists}",
        }

    def prepare(self, workload: Workload) -> None:
        self._workload = workload
        self._pool = host_pool(workload)
        tokens = workload.page_tokens
        self._indices = self._pool.alloc(workload.objects * tokens)
        self._keys = [workload.page_hash(number) for number in range(workload.objects)]
        self._store = StorageBackendFactory.create_backend("file", storage_config(workload), self._pool)
        self._store.register_mem_pool_host(self._pool)
        self._store.register_mem_host_pool_v2(self._pool, PoolName.KV)
        self._store.on_host_pools_registered()
        whole = self._pool.kv_buffer.view(torch.uint8).reshape(-1)
        generator = torch.Generator().manual_seed(workload.seed)
        whole.copy_(torch.randint(0, 256, (whole.numel(),), dtype=torch.uint8, generator=generator))
        self._wanted = self._pool.kv_buffer.clone()
        self._transfers = [self._transfer(batch) for batch in workload.batches()]

    def write(self) -> float:
        self._pool.kv_buffer.copy_(self._wanted)
        return timed(lambda: [self._store.batch_set_v2([transfer]) for transfer in self._transfers])

    def read(self) -> float:
        return timed(lambda: [self._store.batch_get_v2([transfer]) for transfer in self._transfers])

    def exists(self) -> float:
        batches = [transfer.keys for transfer in self._transfers]
        if self._exists == "batch_exists":
            return timed(lambda: [self._store.batch_exists(keys) for keys in batches])
        return timed(lambda: [self._store.batch_exists_v2(keys, []) for keys in batches])

    def clear_memory(self) -> None:
        self._pool.kv_buffer.zero_()

    def wrong_objects(self) -> int:
        return sum(not self._is_right(number) for number in range(self._workload.objects))

    def wipe(self) -> None:
        self._store.clear()

    def store_some(self, numbers: Sequence[int]) -> None:
        self._pool.kv_buffer.copy_(self._wanted)
        self._store.batch_set_v2([self._transfer(numbers)])

    def fetch_some(self, numbers: Sequence[int]) -> list[Verdict]:
        self._pool.kv_buffer.zero_()
        there = [number for number in numbers if self._store.exists(self._keys[number])]
        try:
            loaded = self._store.batch_get_v2([self._transfer(there)])[PoolName.KV]
        except Exception:  # noqa: BLE001 - that it raises is what the table reports
            return [self._after_raise(number, there) for number in numbers]
        outcome = dict(zip(there, loaded, strict=True))
        return [
            Verdict.MISS if not outcome.get(n) else Verdict.RIGHT if self._is_right(n) else Verdict.WRONG
            for n in numbers
        ]

    def release(self) -> None:
        del self._transfers, self._store, self._pool, self._wanted

    def _after_raise(self, number: int, there: Sequence[int]) -> Verdict:
        """HiCacheFile gives no result for any page of a batch in which one raised."""
        return Verdict.ERROR if number in there else Verdict.MISS

    def _transfer(self, numbers: Sequence[int]) -> PoolTransfer:
        tokens = self._workload.page_tokens
        rows = [self._indices[number * tokens : (number + 1) * tokens] for number in numbers]
        indices = torch.cat(rows) if rows else self._indices[:0]
        return PoolTransfer(name=PoolName.KV, host_indices=indices, keys=[self._keys[n] for n in numbers])

    def _is_right(self, number: int) -> bool:
        first = int(self._indices[number * self._workload.page_tokens])
        got = self._pool.get_data_page(first).view(torch.uint8)
        filled, self._pool.kv_buffer = self._pool.kv_buffer, self._wanted
        wanted = self._pool.get_data_page(first).view(torch.uint8)
        self._pool.kv_buffer = filled
        return torch.equal(got, wanted)


def storage_config(workload: Workload) -> HiCacheStorageConfig:
    """Return the configuration of one rank of one, with the workload's folder."""
    return HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="demo/model",
        extra_config={"file_storage_path": workload.folder},
    )


def open_subject(kind: str, backend: str = "") -> Subject:
    match kind:
        case "controller":
            return Controlled(backend)
        case "cpu_copy":
            return CpuCopy()
        case "data_page":
            return DataPage()
        case "classic" | "python" | "rust":
            return SGLangTree(kind)
    return SGLangFile(exists="batch_exists_v2" if kind == "exists_v2" else "batch_exists")


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.ERROR)
    torch.set_num_threads(1)
    subject = open_subject(*sys.argv[1:3])
    subject.version = "0.5.23"
    serve(subject)
