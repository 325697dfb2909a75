"""SGLang 0.5.23's own host pools keep each row where this project looks for it.

`golden/sglang_0.5.23.json` is what its pools answered; `benchmarks/peers/sglang/golden_host_pools.py` asked them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hicache_storage.kernels.relayout import EngineHostPool
from hicache_storage.layout import Grid, KVShape, Shard, ShardLayout
from hicache_storage.layout.host_pool_layout import HostPoolLayout

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sglang_0.5.23.json").read_text())
LAYERS, HEADS, TOKENS, PAGES = (GOLDEN[name] for name in ("layers", "heads", "page_tokens", "num_pages"))
ITEM_NBYTES = GOLDEN["item_nbytes"]
KINDS = [(kind, layout) for kind in ("mha", "mla") for layout in GOLDEN[kind]]
BY_ROWS = [(kind, layout) for kind, layout in KINDS if "rows" in GOLDEN[kind][layout]]


def pool_layout(kind: str, layout: str) -> HostPoolLayout:
    if kind == "mha":
        shape = KVShape.mha(
            num_layers=LAYERS, num_kv_heads=HEADS, head_dim=GOLDEN["head_dim"], dtype="bfloat16", page_tokens=TOKENS
        )
        page = ShardLayout(shape, Grid(LAYERS, HEADS), Shard(layers=range(LAYERS), heads=range(HEADS)))
    else:
        shape = KVShape.mla(num_layers=LAYERS, latent_dim=GOLDEN["head_dim"], dtype="bfloat16", page_tokens=TOKENS)
        page = ShardLayout(shape, Grid(LAYERS, 0), Shard(layers=range(LAYERS), heads=range(0)))
    return HostPoolLayout(name=layout, page=page, num_pages=PAGES)


def engine_pool(kind: str, layout: str) -> tuple[EngineHostPool, int]:
    """Return a pool over a tensor of the shape that SGLang's has, and that tensor's address."""
    kv_buffer = torch.zeros(GOLDEN[kind][layout]["shape"], dtype=torch.bfloat16)
    pool = EngineHostPool.of(layout, kv_buffer, page_tokens=TOKENS, is_mla=kind == "mla")
    return pool, kv_buffer.data_ptr()


@pytest.mark.parametrize(("kind", "layout"), BY_ROWS)
def test_each_row_lies_where_the_engine_keeps_it(kind: str, layout: str) -> None:
    pool, start = engine_pool(kind, layout)

    found = [
        [
            [
                [part[slot // TOKENS, layer, slot % TOKENS, head].data_ptr() - start for head in range(part.shape[3])]
                for slot in range(PAGES * TOKENS)
            ]
            for layer in range(LAYERS)
        ]
        for part in pool.parts
    ]

    assert found == GOLDEN[kind][layout]["rows"]


def test_each_head_of_page_head_lies_where_the_engine_keeps_it() -> None:
    pool, start = engine_pool("mha", "page_head")

    found = [
        [part[page, 0, 0, head].data_ptr() - start, LAYERS * TOKENS * GOLDEN["head_dim"] * ITEM_NBYTES]
        for page in GOLDEN["pages"]
        for head in range(HEADS)
        for part in pool.parts
    ]

    assert found == GOLDEN["mha"]["page_head"]["head_runs"]


def test_rows_of_a_head_of_page_head_follow_the_engines_shape() -> None:
    pool, start = engine_pool("mha", "page_head")
    _, pages, heads, tokens, layers, dim = GOLDEN["mha"]["page_head"]["shape"]
    nbytes = dim * ITEM_NBYTES

    assert (pages, heads, tokens, layers) == (PAGES, HEADS, TOKENS, LAYERS)
    assert pool.parts[0][1, 2, 1, 1].data_ptr() - start == (((1 * heads + 1) * tokens + 1) * layers + 2) * nbytes


def test_the_engines_own_page_is_one_run_where_it_is_page_unified_already() -> None:
    layout = pool_layout("mla", "page_first_direct")

    runs = [layout.chunk_runs(page, range(LAYERS), 0) for page in GOLDEN["pages"]]

    assert runs == [(tuple(run),) for run in GOLDEN["mla"]["page_first_direct"]["page_runs"]]


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_layer_first_runs_are_the_engines_own(kind: str) -> None:
    layout = pool_layout(kind, "layer_first")

    runs = [run for page in GOLDEN["pages"] for run in layout.chunk_runs(page, range(LAYERS), 0) or ()]

    assert [list(run) for run in runs] == GOLDEN[kind]["layer_first"]["page_runs"]
