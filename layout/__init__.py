"""What bytes mean: names, sizes and places, as integers. No I/O, no tensors.

Start with `docs/layout-spec.md`; `layout/README.md` has one drawing per layout.
"""

from hicache_storage.layout.geometry import ITEM_NBYTES, KVShape, canonical_dtype
from hicache_storage.layout.grid import Chunk, Grid
from hicache_storage.layout.keys import (
    ObjectKey,
    check_page_hashes,
    object_key,
    pack_tokens,
    packed_page_hashes,
    page_hashes,
    request_seed,
)
from hicache_storage.layout.namespace import Namespace, Variant
from hicache_storage.layout.plan import ChunkRead, ChunkWrite, RowCopy, plan_reads, plan_writes
from hicache_storage.layout.planner import (
    GridPlan,
    Member,
    Obstacle,
    advise_without,
    coarsest_grid,
    find_obstacles,
    plan_grid,
)
from hicache_storage.layout.shard_layout import ShardLayout
from hicache_storage.layout.topology import Shard, Topology
from hicache_storage.layout.trailer import (
    FOOTER_NBYTES,
    Footer,
    RangeVerifier,
    TrailerMaker,
    block_nbytes,
    build_trailer,
    trailer_nbytes,
)

__all__ = [
    "FOOTER_NBYTES",
    "ITEM_NBYTES",
    "Chunk",
    "ChunkRead",
    "ChunkWrite",
    "Footer",
    "Grid",
    "GridPlan",
    "KVShape",
    "Member",
    "Namespace",
    "ObjectKey",
    "Obstacle",
    "RangeVerifier",
    "RowCopy",
    "Shard",
    "ShardLayout",
    "Topology",
    "TrailerMaker",
    "Variant",
    "advise_without",
    "block_nbytes",
    "build_trailer",
    "canonical_dtype",
    "check_page_hashes",
    "coarsest_grid",
    "find_obstacles",
    "object_key",
    "pack_tokens",
    "packed_page_hashes",
    "page_hashes",
    "plan_grid",
    "plan_reads",
    "plan_writes",
    "request_seed",
    "trailer_nbytes",
]
