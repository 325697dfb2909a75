"""A small deployment with real pages in a file store, and back doors to what lies on the disk."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.layout import Grid, KVShape, Namespace, ShardLayout, Topology, page_hashes
from hicache_storage.registry import open_store
from hicache_storage.types import Outcome

NUM_PAGES = 3
OBJECTS_PER_PAGE = 4
GRID = Grid(layer_partition=2, head_partition=1)
WRITER = Topology(tp=2, pp=2)


@dataclass(frozen=True, slots=True)
class Deployment:
    """Pages of one namespace in the file store at *root*."""

    root: Path
    shape: KVShape
    namespace: Namespace
    page_hashes: list[str]

    @property
    def url(self) -> str:
        return f"file://{self.root}"

    @property
    def descriptor_key(self) -> str:
        return f"namespace_{self.namespace.digest}.json"

    @property
    def keys(self) -> list[str]:
        """Every page object, sorted."""
        chunks = [chunk.suffix for chunk in GRID.chunks(self.shape)]
        return sorted(f"{page}_{self.namespace.digest}_{chunk}" for page in self.page_hashes for chunk in chunks)

    def file_of(self, key: str) -> Path:
        (path,) = self.root.glob(f"objects/*/*/{key}")
        return path

    def files(self) -> set[str]:
        """Names of all objects on the disk."""
        return {path.name for path in self.root.glob("objects/*/*/*")}

    def write(self) -> list[Outcome]:
        """Write every page from every rank, with the same bytes each time."""
        rng = random.Random(7)
        outcomes: list[Outcome] = []
        with open_store(self.url) as store:
            for tp_rank, pp_rank in WRITER.ranks():
                layout = ShardLayout(self.shape, GRID, WRITER.shard(self.shape, tp_rank=tp_rank, pp_rank=pp_rank))
                pages = [memoryview(rng.randbytes(layout.page_nbytes)) for _ in self.page_hashes]
                outcomes += PageStore(store, self.namespace, layout).write_pages(self.page_hashes, pages)
        return outcomes


def deploy(root: Path, *, model_id: str = "demo-model", dtype: str = "float32") -> Deployment:
    """Return a deployment whose pages are in the store at *root*."""
    shape = KVShape.mha(num_layers=4, num_kv_heads=2, head_dim=8, dtype=dtype, page_tokens=4)
    namespace = Namespace.of(model_id=model_id, shape=shape, grid=GRID)
    hashes = page_hashes(range(100, 100 + NUM_PAGES * shape.page_tokens), shape.page_tokens)
    deployment = Deployment(root, shape, namespace, hashes)
    assert all(deployment.write())
    return deployment


def flip_bit(path: Path, offset: int) -> None:
    """Flip the lowest bit of the byte at *offset*, counted from the end where it is negative."""
    body = bytearray(path.read_bytes())
    body[offset] ^= 1
    path.write_bytes(body)


def truncate(path: Path, nbytes: int) -> None:
    """Cut the last *nbytes* bytes off."""
    path.write_bytes(path.read_bytes()[:-nbytes])
