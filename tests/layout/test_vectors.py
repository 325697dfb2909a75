"""Keys, digests and spans equal those of the published SGLang 0.5.23 library code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hicache_storage.layout import (
    Grid,
    KVShape,
    Namespace,
    Shard,
    ShardLayout,
    Topology,
    page_hashes,
    plan_writes,
    request_seed,
)

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "golden" / "sglang_0.5.23.json").read_text()
)


@pytest.mark.parametrize("vector", VECTORS["page_hash"], ids=lambda v: f"{len(v['tokens'])}x{v['page_tokens']}")
def test_full_pages_hash_as_the_engine_hashes_them(vector: dict[str, Any]) -> None:
    full_pages = len(vector["tokens"]) // vector["page_tokens"]

    hashes = page_hashes(vector["tokens"], vector["page_tokens"], prior=vector["prior"])

    assert hashes == vector["chain"][:full_pages]


@pytest.mark.parametrize("vector", VECTORS["request_seed"], ids=lambda v: f"{v['extra_key']!r}-{v['cache_salt']!r}")
def test_request_scope_seeds_as_the_engine_seeds_it(vector: dict[str, Any]) -> None:
    assert request_seed(extra_key=vector["extra_key"], cache_salt=vector["cache_salt"]) == vector["seed"]


@pytest.mark.parametrize("vector", VECTORS["namespace"], ids=lambda v: f"{v['model_id']}-{v['dtype']}")
def test_namespace_digest_is_the_engines(vector: dict[str, Any]) -> None:
    namespace = Namespace(
        model_id=vector["model_id"],
        dtype=vector["dtype"],
        page_size=vector["page_size"],
        rank_replicated=vector["rank_replicated"],
        total_kv_heads=vector["total_kv_heads"],
        layer_partition=vector["layer_partition"],
        head_partition=vector["head_group"],
        object_layout=vector["object_layout"],
    )

    assert namespace.digest == vector["digest"]


@pytest.mark.parametrize(
    "vector", VECTORS["plan"], ids=lambda v: f"tp{v['tp']}pp{v['pp']}-{v['tp_rank']}-{v['pp_rank']}"
)
def test_rank_writes_the_objects_that_the_engine_plans(vector: dict[str, Any]) -> None:
    shape = KVShape.mha(
        num_layers=vector["layers"], num_kv_heads=vector["kv_heads"], head_dim=128, dtype="bfloat16", page_tokens=64
    )
    grid = Grid(vector["layer_partition"], vector["head_group"])
    topology = Topology(vector["tp"], vector["pp"])
    shard = topology.shard(shape, tp_rank=vector["tp_rank"], pp_rank=vector["pp_rank"])

    plan = plan_writes(ShardLayout(shape, grid, shard))

    wanted = [suffix.split("_", 1)[1] for suffix in vector["suffixes"]]
    assert [write.chunk.suffix for write in plan] == wanted


@pytest.mark.parametrize("vector", VECTORS["chunk_span"], ids=lambda v: f"L{v['layer_range'][0]}-H{v['head_group']}")
def test_chunk_is_the_span_that_the_engine_computes(vector: dict[str, Any]) -> None:
    shape = KVShape.mha(
        num_layers=vector["layers"],
        num_kv_heads=vector["local_heads"],
        head_dim=vector["head_dim"],
        dtype="bfloat16",
        page_tokens=vector["page_tokens"],
    )
    grid = Grid(vector["layers"], vector["local_heads"] // vector["head_groups"])
    layout = ShardLayout(shape, grid, Shard(range(vector["layers"]), range(vector["local_heads"])))

    span = layout.chunk_span(range(*vector["layer_range"]), vector["head_group"])

    assert list(span) == vector["offset_length"]
    assert layout.page_nbytes == vector["bytes_per_page"]
