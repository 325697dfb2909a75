"""Gather: pages of an engine's pool into host pages in page_unified order."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from hicache_storage.kernels.dispatch import Impl, explain
from hicache_storage.kernels.gather_pages.reference import gather_pages_reference
from hicache_storage.kernels.launches import launch
from hicache_storage.kernels.move import PageMove, Which, refuse_duplicates
from hicache_storage.kernels.pool import DevicePool


def gather_pages(
    pool: DevicePool,
    page_ids: Tensor,
    pages: Tensor,
    *,
    group_heads: int,
    impl: Impl = "auto",
    **which: Unpack[Which],
) -> None:
    """Fill host pages from pages of *pool*; nothing else of *pages* is written.

    Does not wait for a GPU: the bytes are there once the current stream has got so far.

    Args:
        page_ids: int32 or int64 ``[P]``, in any order; ids on the CPU are checked without waiting for a GPU.
        pages: uint8 ``[N, page_nbytes]``, contiguous, in page_unified order; on the pool's device, or page-locked
            host memory, which Triton writes through the bus.
        group_heads: heads of a head group; 0 or 1 for MLA.
        which: see `Which`; a row may be named once only.

    Raises:
        LayoutError: the arguments do not fit together; nothing was moved.
        ConfigError: *impl* cannot run here.

    Cost: every byte read once and written once; one launch for all layers.
    """
    move = PageMove.check(pool, pages, page_ids, group_heads=group_heads, **which)
    refuse_duplicates(move.rows, "rows")
    choice = explain(pool, pages, impl)
    if not move.page_ids.numel():
        return
    if choice.impl == "triton":
        from hicache_storage.kernels.gather_pages.triton_kernel import (  # noqa: PLC0415 - loads triton
            gather_pages_kernel,
        )

        launch(gather_pages_kernel, move)
    else:
        gather_pages_reference(move)
