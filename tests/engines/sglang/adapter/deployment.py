"""All ranks of a deployment as SGLang would have them, on one store, and a model whose pages are known to the byte."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo
from sglang.srt.mem_cache.storage import StorageBackendFactory
from sglang.srt.mem_cache.utils import get_hash_str

from hicache_storage.engine_integration.adapters.sglang import HiCacheUnified
from hicache_storage.layout import KVShape, Topology
from tests.engines.sglang.adapter.host_pools import Rows, Shape, host_pool, page_rows, put_page, slots_of

MODEL = "demo/model"
FILE_STORE = "hicache_storage.backends.file:FileStore"
TOKENS = 16
GQA = KVShape.mha(num_layers=4, num_kv_heads=4, head_dim=64, dtype="bfloat16", page_tokens=TOKENS)
LATENT = KVShape.mla(num_layers=4, latent_dim=144, dtype="bfloat16", page_tokens=TOKENS)


@lru_cache(maxsize=32)
def model_page(shape: KVShape, page: int) -> Rows:
    """Return the whole model's page: random bits, the same for everybody."""
    axes: tuple[int, ...] = (shape.num_layers, shape.page_tokens, shape.head_dim)
    if not shape.is_mla:
        axes = (shape.num_layers, 2, shape.page_tokens, shape.num_kv_heads, shape.head_dim)
    return np.random.default_rng(page).integers(0, 1 << 16, axes, np.uint16)


def hashes_of(pages: int, page_tokens: int = TOKENS) -> list[str]:
    """Return the page hashes that SGLang itself gives to a prompt of counted tokens."""
    found: list[str] = get_hash_str(list(range(pages * page_tokens)), None, page_size=page_tokens)
    return found


def storage_config(
    *, tp: tuple[int, int] = (0, 1), pp: tuple[int, int] = (0, 1), **options: object
) -> HiCacheStorageConfig:
    """Return what SGLang tells a backend; *options* are its extra config."""
    is_mla = bool(options.pop("is_mla", False))
    return HiCacheStorageConfig(
        tp_rank=tp[0],
        tp_size=tp[1],
        pp_rank=pp[0],
        pp_size=pp[1],
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=is_mla,
        enable_storage_metrics=True,
        is_page_first_layout=False,
        model_name=MODEL,
        extra_config={
            "backend_name": "hicache_storage",
            "module_path": "hicache_storage.engine_integration.adapters.sglang",
            "class_name": "HiCacheUnified",
            "interface_v1": 1,
            **options,
        },
    )


@dataclass
class Rank:
    """One rank: SGLang's host pool, the adapter on it, and its share of the model's pages."""

    storage: HiCacheUnified
    pool: Any
    shape: KVShape
    layers: slice
    heads: slice

    def share(self, page: int) -> Rows:
        rows = model_page(self.shape, page)[self.layers]
        return rows if self.shape.is_mla else rows[:, :, :, self.heads]

    def fill(self, pages: int, at: int = 0) -> None:
        """Make the model's first pages the content of the host pool."""
        for page in range(pages):
            put_page(self.pool, at + page, self.share(page))

    def holds(self, page: int, at: int) -> bool:
        share = self.share(page)
        return bool((page_rows(self.pool, at, share) == share).all())

    def wipe(self) -> None:
        buffers = self.pool.kv_buffer if isinstance(self.pool.kv_buffer, tuple) else (self.pool.kv_buffer,)
        for buffer in buffers:
            buffer.view(torch.uint8).fill_(0xA5)

    def write(self, hashes: list[str], *, prefix: list[str] | None = None) -> list[bool]:
        slots = slots_of(self.pool, list(range(len(hashes))))
        return self.storage.batch_set_v1(hashes, slots, HiCacheStorageExtraInfo(prefix_keys=prefix))

    def read(self, hashes: list[str]) -> list[bool]:
        """Read into pages that lie backwards at the end of the pool."""
        self.wipe()
        return self.storage.batch_get_v1(hashes, slots_of(self.pool, self.places(len(hashes))))

    def places(self, pages: int) -> list[int]:
        return [self.pool.page_num - 1 - page for page in range(pages)]


@contextmanager
def ranks(topology: str, layout: str, folder: Path, shape: KVShape = GQA, **options: Any) -> Iterator[list[Rank]]:
    """Yield every rank of a deployment, made by SGLang's own factory and registered as its controller does."""
    found = [rank(topology, place, layout, folder, shape, **options) for place in Topology.parse(topology).ranks()]
    try:
        yield found
    finally:
        for one in found:
            one.storage.close()


def rank(
    topology: str,
    place: tuple[int, int],
    layout: str,
    folder: Path,
    shape: KVShape = GQA,
    *,
    sizes: Shape | None = None,
    **options: Any,
) -> Rank:
    """Return one rank of a deployment; *sizes* are those of its pool, where they are not its share of *shape*."""
    whole, (tp_rank, pp_rank) = Topology.parse(topology), place
    layers, heads = whole.layers(shape, pp_rank), whole.heads(shape, tp_rank)
    own = Shape(
        layers=len(layers),
        heads=len(heads),
        head_dim=shape.head_dim,
        page_tokens=shape.page_tokens,
        start_layer=layers.start,
    )
    pool = host_pool(sizes or own, layout)
    config = storage_config(
        tp=(tp_rank, whole.tp),
        pp=(pp_rank, whole.pp),
        is_mla=shape.is_mla,
        backend=FILE_STORE,
        extra_config={"path": str(folder)},
        **options,
    )
    storage = StorageBackendFactory.create_backend("dynamic", config, pool)
    storage.register_mem_pool_host(pool)
    storage.register_mem_host_pool_v2(pool, "kv")
    storage.on_host_pools_registered()
    return Rank(storage, pool, shape, slice(layers.start, layers.stop), slice(heads.start, heads.stop))
