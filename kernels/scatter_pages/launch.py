"""Scatter: host pages in page_unified order into pages of an engine's pool."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from hicache_storage.kernels.dispatch import Impl, explain
from hicache_storage.kernels.launches import launch
from hicache_storage.kernels.move import PageMove, Which, refuse_duplicates
from hicache_storage.kernels.pool import DevicePool
from hicache_storage.kernels.scatter_pages.reference import scatter_pages_reference


def scatter_pages(
    pages: Tensor,
    pool: DevicePool,
    page_ids: Tensor,
    *,
    group_heads: int,
    impl: Impl = "auto",
    **which: Unpack[Which],
) -> None:
    """Fill pages of *pool* from host pages; nothing else of *pool* is written. The inverse of `gather_pages`.

    Does not wait for a GPU: the bytes are there once the current stream has got so far.

    Args:
        page_ids: int32 or int64 ``[P]``, in any order, each named once only; ids on the CPU are checked without
            waiting for a GPU.
        pages: uint8 ``[N, page_nbytes]``, contiguous, in page_unified order; on the pool's device, or page-locked
            host memory, which Triton reads through the bus.
        group_heads: heads of a head group; 0 or 1 for MLA.
        which: see `Which`.

    Raises:
        LayoutError: the arguments do not fit together; nothing was moved.
        ConfigError: *impl* cannot run here.

    Cost: every byte read once and written once; one launch for all layers.
    """
    move = PageMove.check(pool, pages, page_ids, group_heads=group_heads, **which)
    refuse_duplicates(move.page_ids, "page_ids")
    choice = explain(pool, pages, impl)
    if not move.page_ids.numel():
        return
    if choice.impl == "triton":
        from hicache_storage.kernels.scatter_pages.triton_kernel import (  # noqa: PLC0415 - loads triton
            scatter_pages_kernel,
        )

        launch(scatter_pages_kernel, move)
    else:
        scatter_pages_reference(move)
