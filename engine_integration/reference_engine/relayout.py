"""Pages between a rank's per-layer pool and host pages in page_unified order, in plain torch on the CPU.

A host page is `(head_group, layer, K/V, token_in_page, head_in_group, head_dim)`, the pool one tensor
`[slots, heads, head_dim]` per layer and K/V. Relayout moves bytes and changes none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hicache_storage.engine_integration.reference_engine.kv_pool import KVPool
from hicache_storage.errors import LayoutError
from hicache_storage.layout import ShardLayout


def gather_pages(pool: KVPool, page_ids: Tensor, layout: ShardLayout, host: Tensor) -> None:
    """Fill *host* with the pages *page_ids* of *pool*.

    Args:
        page_ids: `[P]`, in the order of the host pages.
        host: `[P, page_nbytes]`, uint8, contiguous.

    Raises:
        LayoutError: pool, page ids and host pages do not fit together.

    Cost: every byte read once and written once.
    """
    pages = _as_array(pool, page_ids, layout, host)
    slots = pool.slots_of(page_ids)
    for layer, kv in _tensors(pool):
        _of_layer(pages, *layer).copy_(_by_group(kv[slots], pages))


def scatter_pages(host: Tensor, layout: ShardLayout, pool: KVPool, page_ids: Tensor) -> None:
    """Fill the pages *page_ids* of *pool* from *host*; the inverse of `gather_pages`, with its arguments."""
    pages = _as_array(pool, page_ids, layout, host)
    slots = pool.slots_of(page_ids)
    _, groups, _, _, page_tokens, group_heads, head_dim = pages.shape
    for layer, kv in _tensors(pool):
        rows = _of_layer(pages, *layer).permute(0, 2, 1, 3, 4)
        kv[slots] = rows.reshape(len(page_ids) * page_tokens, groups * group_heads, head_dim)


def _tensors(pool: KVPool) -> list[tuple[tuple[int, int], Tensor]]:
    """Return each tensor of *pool* with its (layer, 0 for K or 1 for V)."""
    keyed = [((layer, 0), tensor) for layer, tensor in enumerate(pool.keys)]
    return keyed + [((layer, 1), tensor) for layer, tensor in enumerate(pool.values)]


def _of_layer(pages: Tensor, layer: int, part: int) -> Tensor:
    """Return K (0) or V (1) of one layer of every page: `[P, groups, page_tokens, group_heads, head_dim]`."""
    return pages[:, :, layer, part]


def _by_group(rows: Tensor, pages: Tensor) -> Tensor:
    """Return *rows* `[P * page_tokens, heads, head_dim]` as `[P, groups, page_tokens, group_heads, head_dim]`."""
    num_pages, groups, _, _, page_tokens, group_heads, head_dim = pages.shape
    return rows.view(num_pages, page_tokens, groups, group_heads, head_dim).permute(0, 2, 1, 3, 4)


def _as_array(pool: KVPool, page_ids: Tensor, layout: ShardLayout, host: Tensor) -> Tensor:
    """Return *host* seen as `[P, groups, layers, 2, page_tokens, group_heads, head_dim]` in the pool's dtype."""
    if layout.shape.is_mla:
        raise LayoutError("this relayout is for K and V pools; MLA pages have latent rows")
    _, num_layers, _, page_tokens, _, head_dim = axes = layout.axes
    heads = len(layout.shard.heads)
    if page_tokens != pool.page_tokens:
        raise LayoutError(f"pages of {page_tokens} tokens do not fit a pool of {pool.page_tokens}-token pages")
    expected = (num_layers, heads, head_dim)
    found = (len(pool.keys), *pool.keys[0].shape[1:])
    if found != expected:
        raise LayoutError(f"the pool has (layers, heads, head_dim) {found}, the pages {expected}")
    if pool.keys[0].dtype.itemsize != layout.shape.item_nbytes:
        raise LayoutError(f"the pool holds {pool.keys[0].dtype}, the pages {layout.shape.dtype}")
    if host.dtype != torch.uint8 or tuple(host.shape) != (len(page_ids), layout.page_nbytes):
        raise LayoutError(
            f"host pages are {host.dtype} {tuple(host.shape)}, expected torch.uint8 {(len(page_ids), layout.page_nbytes)}"
        )
    return host.view(pool.keys[0].dtype).view(len(page_ids), *axes)
