"""One cache for deployments of different sizes: TP4/PP2 writes, TP2/PP1 and TP8/PP4 read.

    python examples/02_one_cache_two_tp_sizes.py

Nothing here is floating point. Every element of the KV is a number that says where in the model it belongs, so
a byte in the wrong place would be seen. No rank of a reader has the shape of any rank of the writer.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Sequence

from hicache_storage import ObjectStore, open_store
from hicache_storage.cli.output import print_table
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.layout import KVShape, Namespace, ShardLayout, Topology, page_hashes, plan_grid

SHAPE = KVShape.mha(num_layers=8, num_kv_heads=8, head_dim=4, dtype="float32", page_tokens=16)
WRITER = Topology.parse("tp4pp2")
READERS = [Topology.parse("tp2pp1"), Topology.parse("tp8pp4")]
GRID = plan_grid(SHAPE, [WRITER]).grid
NAMESPACE = Namespace.of(model_id="example", shape=SHAPE, grid=GRID)
PAGES = page_hashes(range(48), page_tokens=16)


def coded_page(layout: ShardLayout, page: int) -> bytes:
    """Return a rank's host page; each element is ``page, layer, K or V, token, head, dim`` in one number."""
    heads, layers = layout.shard.heads, layout.shard.layers
    return array(
        "I",
        (
            ((((page * 8 + layer) * 2 + kv) * 16 + token) * 8 + head) * 4 + dim
            for group in range(heads.start, heads.stop, layout.group_heads)
            for layer in layers
            for kv in range(2)
            for token in range(16)
            for head in range(group, group + layout.group_heads)
            for dim in range(4)
        ),
    ).tobytes()


def layouts(topology: Topology) -> list[ShardLayout]:
    """Return what each rank holds of a page."""
    return [ShardLayout(SHAPE, GRID, topology.shard(SHAPE, tp_rank=tp, pp_rank=pp)) for tp, pp in topology.ranks()]


def write(store: ObjectStore, topology: Topology) -> Sequence[object]:
    """Store every page from every rank."""
    clients = [PageStore(store, NAMESPACE, layout) for layout in layouts(topology)]
    for client in clients:
        pages = [memoryview(coded_page(client.layout, page)) for page in range(len(PAGES))]
        assert all(client.write_pages(PAGES, pages))
    return ["writes", topology.name, len(clients), clients[0].objects_per_page, clients[0].layout.page_nbytes, "-"]


def read(store: ObjectStore, topology: Topology) -> Sequence[object]:
    """Read every page on every rank, and compare all bytes with what that rank must have."""
    clients = [PageStore(store, NAMESPACE, layout, read_only=True) for layout in layouts(topology)]
    for client in clients:
        pages = [bytearray(client.layout.page_nbytes) for _ in PAGES]
        assert client.lookup_prefix(PAGES) == len(PAGES)
        assert all(client.read_pages(PAGES, [memoryview(page) for page in pages]))
        assert pages == [coded_page(client.layout, page) for page in range(len(PAGES))]
    return ["reads", topology.name, len(clients), clients[0].objects_per_page, clients[0].layout.page_nbytes, "all"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, open_store("file", {"path": folder}) as cache:
        rows = [write(cache, WRITER), *(read(cache, topology) for topology in READERS)]
    print(
        f"8 layers, 8 KV heads; one object holds {GRID.layer_partition} layers x {GRID.head_partition} heads of a page"
    )
    print_table(["", "topology", "ranks", "objects/page", "bytes/page", "bytes right"], rows)
