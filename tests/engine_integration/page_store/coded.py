"""KV whose every element says where it belongs: F4's `coded_kv`, for any shape and any shard."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.layout import Grid, KVShape, Namespace, ShardLayout, Topology, page_hashes
from hicache_storage.store import ObjectStore
from hicache_storage.types import Outcome

POISON = 0xA5


@lru_cache(maxsize=64)
def whole_page(shape: KVShape, page: int) -> npt.NDArray[np.uint32]:
    """Return one page of the whole model, ``[layer, K/V, token, head, dim]`` or ``[layer, token, dim]``; element = its index."""
    axes = (
        (shape.num_layers, shape.page_tokens, shape.head_dim)
        if shape.is_mla
        else (shape.num_layers, 2, shape.page_tokens, shape.num_kv_heads, shape.head_dim)
    )
    size = int(np.prod(axes))
    return (np.arange(size, dtype=np.uint32) + page * size).reshape(axes)


def coded_page(layout: ShardLayout, page: int) -> bytearray:
    """Return one rank's host page, built by indexing the whole page, independently of every plan."""
    shape, shard = layout.shape, layout.shard
    mine = whole_page(shape, page)[shard.layers.start : shard.layers.stop]
    if not shape.is_mla:
        width = layout.group_heads
        groups = [mine[..., start : start + width, :] for start in range(shard.heads.start, shard.heads.stop, width)]
        mine = np.stack(groups)
    return bytearray(np.ascontiguousarray(mine, dtype="<u4").tobytes())


def poisoned_pages(layout: ShardLayout, count: int) -> list[bytearray]:
    return [bytearray([POISON]) * layout.page_nbytes for _ in range(count)]


def views(pages: list[bytearray]) -> list[memoryview]:
    return [memoryview(page) for page in pages]


class Deployment:
    """All ranks of one topology on one store."""

    def __init__(
        self, store: ObjectStore, shape: KVShape, grid: Grid, topology: Topology, model_id: str = "coded"
    ) -> None:
        self.store = store
        self.shape = shape
        self.topology = topology
        self.namespace = Namespace.of(model_id=model_id, shape=shape, grid=grid)
        self.layouts = {
            rank: ShardLayout(shape, grid, topology.shard(shape, tp_rank=rank[0], pp_rank=rank[1]))
            for rank in topology.ranks()
        }

    def client(self, rank: tuple[int, int] = (0, 0), *, read_only: bool = False) -> PageStore:
        return PageStore(self.store, self.namespace, self.layouts[rank], read_only=read_only)

    def write(self, hashes: list[str], rank: tuple[int, int]) -> list[Outcome]:
        pages = [coded_page(self.layouts[rank], page) for page in range(len(hashes))]
        return self.client(rank).write_pages(hashes, views(pages))

    def write_all(self, hashes: list[str]) -> None:
        """Write *hashes* from every elected rank."""
        for rank in self.topology.ranks():
            if self.topology.is_writer(self.shape, tp_rank=rank[0]):
                assert all(self.write(hashes, rank))

    def read(self, hashes: list[str], rank: tuple[int, int] = (0, 0)) -> tuple[list[Outcome], list[bytearray]]:
        pages = poisoned_pages(self.layouts[rank], len(hashes))
        return self.client(rank, read_only=True).read_pages(hashes, views(pages)), pages


def hashes_of(pages: int, page_tokens: int) -> list[str]:
    return page_hashes(range(pages * page_tokens), page_tokens)
