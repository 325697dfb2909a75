"""Writes down where SGLang's own host pools keep each row, for tests/kernels/relayout/golden.

Every number is what SGLang's code answers about a small pool: shapes of ``kv_buffer``, addresses of the rows in its
per-layer views, of pages from ``get_page_buffer_meta`` and of heads from ``get_split_heads_page_buffer_meta``.
Run it in the peer's environment with its PYTHONPATH (`benchmarks/peers/environments.py`), from a folder that holds a
link to `benchmarks` and nothing else: transformers would take the repository's folder `kernels` for a package it looks for.

    python -m benchmarks.peers.sglang.golden_host_pools > golden.json
"""

from __future__ import annotations

import json

import torch
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

from benchmarks.peers.sglang.host_pools import HostPool, PoolShape, mha_pool, mla_pool

SHAPE = PoolShape(layers=3, heads=2, head_dim=4, page_tokens=2, pages=3)
PAGES = (2, 0)
LAYOUTS = ("layer_first", "page_first", "page_first_direct")


def main() -> None:
    sizes = {"layers": SHAPE.layers, "heads": SHAPE.heads, "head_dim": SHAPE.head_dim}
    sizes |= {"page_tokens": SHAPE.page_tokens, "num_pages": SHAPE.pages, "item_nbytes": SHAPE.dtype.itemsize}
    mha = {name: described(mha_pool(SHAPE, name)) for name in (*LAYOUTS, "page_head")}
    mla = {name: described(mla_pool(SHAPE, name)) for name in LAYOUTS}
    print(json.dumps({"sglang": "0.5.23", **sizes, "pages": PAGES, "mha": mha, "mla": mla}))


def described(pool: HostPool) -> dict[str, object]:
    """Return the pool's shape, and offsets in bytes from its start."""
    slots = torch.tensor([page * SHAPE.page_tokens + token for page in PAGES for token in range(SHAPE.page_tokens)])
    answer: dict[str, object] = {
        "shape": list(pool.kv_buffer.shape),
        "page_runs": runs(pool, pool.get_page_buffer_meta(slots)),
    }
    if pool.layout == "page_head":
        answer["head_runs"] = runs(pool, pool.get_split_heads_page_buffer_meta(slots, SHAPE.heads))
    else:
        answer["rows"] = [[row_offsets(layer, pool) for layer in layers] for layers in views(pool)]
    return answer


def runs(pool: HostPool, pointers_and_sizes: tuple[list[int], list[int]]) -> list[tuple[int, int]]:
    pointers, sizes = pointers_and_sizes
    return [(pointer - pool.kv_buffer.data_ptr(), size) for pointer, size in zip(pointers, sizes, strict=True)]


def views(pool: HostPool) -> list[list[torch.Tensor]]:
    """Return the per-layer views of K and V, or of the latent rows.

    For page_first_direct SGLang's MLA pool keeps none that are by layer; its copies index the buffer's second axis.
    """
    if isinstance(pool, MHATokenToKVPoolHost):
        return [pool.k_data_refs, pool.v_data_refs]
    if pool.layout == "page_first_direct":
        return [[pool.kv_buffer[:, layer] for layer in range(SHAPE.layers)]]
    return [pool.data_refs]


def row_offsets(layer: torch.Tensor, pool: HostPool) -> list[list[int]]:
    """Return the offset of each head's row of each slot of one layer."""
    by_page = layer.ndim == 4
    slots = range(SHAPE.pages * SHAPE.page_tokens)
    rows = [layer[divmod(slot, SHAPE.page_tokens)] if by_page else layer[slot] for slot in slots]
    return [[head.data_ptr() - pool.kv_buffer.data_ptr() for head in row] for row in rows]


if __name__ == "__main__":
    main()
