"""The bytes of stored objects never change, and a reader that knows only the specification reads them.

`python -m tests.layout.test_golden` wrote the golden objects once; a new object format gets new ones
beside them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.layout import Grid, KVShape, Namespace, ShardLayout, Topology, Variant, page_hashes
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from tests.layout.independent_reader import mha_chunk, mla_chunk, namespace_digest, page_hash, payload_of

GOLDEN = Path(__file__).parent / "golden"
TOKENS = list(range(1000, 1064))
MHA = KVShape.mha(num_layers=3, num_kv_heads=2, head_dim=32, dtype="bfloat16", page_tokens=32)
MLA = KVShape.mla(num_layers=3, latent_dim=40, dtype="float16", page_tokens=32)
CASES = {"mha": (MHA, Grid(2, 1), Topology(2, 2, (2, 1))), "mla": (MLA, Grid(2, 0), Topology(2, 2, (2, 1)))}


def elements(shape: KVShape) -> npt.NDArray[np.uint16]:
    """Return page 1 of the model, every element its own index: ``[layer, K/V, token, head, dim]`` or ``[layer, token, dim]``."""
    axes = (3, 32, 40) if shape.is_mla else (3, 2, 32, 2, 32)
    return np.arange(np.prod(axes), dtype="<u2").reshape(axes)


def namespace_of(shape: KVShape, grid: Grid) -> Namespace:
    return Namespace.of(
        model_id="golden/modèle", shape=shape, grid=grid, variant=Variant(weights_revision="r1", rope_scaling="yarn-4")
    )


def stored_objects(name: str) -> dict[str, bytes]:
    """Write page 1 from every elected rank and return what the store holds."""
    shape, grid, topology = CASES[name]
    store = MemoryStore(MemoryOptions())
    hashes = page_hashes(TOKENS, shape.page_tokens)
    for tp_rank, pp_rank in topology.ranks():
        if not topology.is_writer(shape, tp_rank=tp_rank):
            continue
        layout = ShardLayout(shape, grid, topology.shard(shape, tp_rank=tp_rank, pp_rank=pp_rank))
        layers, heads = layout.shard.layers, layout.shard.heads
        whole = elements(shape)[layers.start : layers.stop]
        if not shape.is_mla:
            cut = whole[..., heads.start : heads.stop, :].reshape(len(layers), 2, 32, layout.groups, -1, 32)
            whole = np.moveaxis(cut, 3, 0)
        page = memoryview(np.ascontiguousarray(whole).tobytes())
        outcomes = PageStore(store, namespace_of(shape, grid), layout).write_pages(hashes[1:], [page])
        assert all(outcomes)
    bodies = {}
    for info in store.list_keys():
        body = bytearray(info.nbytes)
        assert store.read_into(info.key, 0, [body])
        bodies[info.key] = bytes(body)
    return bodies


@pytest.mark.parametrize("name", CASES)
def test_stored_bytes_are_the_golden_bytes(name: str) -> None:
    golden = {path.name: path.read_bytes() for path in (GOLDEN / name).iterdir()}

    assert stored_objects(name) == golden


@pytest.mark.parametrize("name", CASES)
def test_reader_that_knows_only_the_specification_reads_them(name: str) -> None:
    shape, grid, _ = CASES[name]
    fields: dict[str, str | int | bool] = {
        "schema_version": 1,
        "model_id": "golden/modèle",
        "dtype": shape.dtype,
        "page_size": 32,
        "rank_replicated": shape.is_mla,
        "total_kv_heads": 0 if shape.is_mla else 2,
        "layer_partition": 2,
        "head_group": grid.head_partition,
        "object_layout": "page-unified-v1",
        "weights_revision": "r1",
        "rope_scaling": "yarn-4",
    }
    prefix = f"{page_hash(TOKENS, 32, 1)}_{namespace_digest(fields)}"
    page = elements(shape)

    for start, stop in ((0, 2), (2, 3)):
        for group in (0, 1) if not shape.is_mla else (None,):
            key = f"{prefix}_L{start}-{stop}" + ("" if group is None else f"_H{group}")
            payload = payload_of(key, (GOLDEN / name / key).read_bytes())
            if group is None:
                assert np.array_equal(mla_chunk(payload, stop - start, 32, 40), page[start:stop])
            else:
                chunk = mha_chunk(payload, stop - start, 32, 1, 32)
                assert np.array_equal(chunk, page[start:stop, :, :, group : group + 1])


if __name__ == "__main__":
    for case in CASES:
        (GOLDEN / case).mkdir(exist_ok=True)
        for stored_key, stored_body in stored_objects(case).items():
            (GOLDEN / case / stored_key).write_bytes(stored_body)
