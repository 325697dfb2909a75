"""What does not fit together is refused before anything moves, and the message has both numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hicache_storage.errors import LayoutError
from hicache_storage.kernels import DevicePool, gather_pages, scatter_pages
from hicache_storage.kernels.move import Which
from tests.kernels.cases import BY_NAME, DEVICE, build

CASE = BY_NAME["head_groups"]
PAGE_NBYTES = CASE.geometry.page_nbytes


def pages_of(rows: int = 4, nbytes: int = PAGE_NBYTES) -> Tensor:
    return torch.full((rows, nbytes), 0xA5, dtype=torch.uint8, device=DEVICE)


def ids(*pages: int) -> Tensor:
    return torch.tensor(pages)


def heads(slots: int = 8, count: int = 2, dim: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(slots, count, dim, dtype=dtype)


REFUSED: dict[str, tuple[Tensor, Tensor, int, Which, str]] = {
    "page id too large": (ids(0, 4), pages_of(), 2, {}, r"page_ids lie in \[0, 4\], expected \[0, 3\]"),
    "page id negative": (ids(-1, 2), pages_of(), 2, {}, r"page_ids lie in \[-1, 2\], expected \[0, 3\]"),
    "page ids of 16 bits": (ids(0).short(), pages_of(), 2, {}, r"page_ids is .* got \[1\] torch.int16"),
    "page ids of two axes": (ids(0).view(1, 1), pages_of(), 2, {}, r"page_ids is .* got \[1, 1\] torch.int64"),
    "too few host pages": (ids(0, 1, 2), pages_of(2), 2, {}, "3 page ids for 2 host pages"),
    "host pages too short": (
        ids(0),
        pages_of(4, 100),
        2,
        {},
        f"host pages have 100 bytes, the pool's .* {PAGE_NBYTES}",
    ),
    "host pages apart": (ids(0), pages_of(8)[::2], 2, {}, f"lie {2 * PAGE_NBYTES} bytes apart, expected {PAGE_NBYTES}"),
    "host pages of bf16": (ids(0), pages_of().view(torch.bfloat16), 2, {}, r"got \[4, \d+\] torch.bfloat16"),
    "groups do not divide": (ids(0), pages_of(), 3, {}, "4 heads are not made of groups of 3"),
    "no groups": (ids(0), pages_of(), 0, {}, "4 heads are not made of groups of 0"),
    "row too large": (ids(0), pages_of(), 2, {"rows": ids(4)}, r"rows lie in \[4, 4\], expected \[0, 3\]"),
    "rows for other ids": (ids(0, 1), pages_of(), 2, {"rows": ids(0)}, r"rows has shape \[1\] for 2 page ids"),
    "layers too many": (ids(0), pages_of(), 2, {"layers": range(1, 4)}, r"layers \[1, 4\) are not in .* \[0, 3\)"),
    "no layers": (ids(0), pages_of(), 2, {"layers": range(1, 1)}, r"layers \[1, 1\)"),
    "tail too long": (ids(0), pages_of(), 2, {"tail_tokens": 5}, r"tail_tokens = 5 is not in \[1, 4\]"),
    "tail empty": (ids(0), pages_of(), 2, {"tail_tokens": 0}, r"tail_tokens = 0 is not in \[1, 4\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_do_not_fit_are_refused_before_anything_moves(name: str) -> None:
    page_ids, pages, group_heads, which, message = REFUSED[name]
    built = build(CASE, seed=None)

    with pytest.raises(LayoutError, match=message):
        gather_pages(built.pool, page_ids, pages, group_heads=group_heads, **which)
    with pytest.raises(LayoutError, match=message):
        scatter_pages(pages, built.pool, page_ids, group_heads=group_heads, **which)

    assert bool((pages.view(torch.uint8) == 0xA5).all())


def test_a_destination_named_twice_is_refused() -> None:
    pool, pages = build(CASE, seed=1).pool, pages_of()

    with pytest.raises(LayoutError, match="page_ids has 3 entries, only 2 of them different"):
        scatter_pages(pages, pool, ids(1, 3, 1), group_heads=2)
    with pytest.raises(LayoutError, match="rows has 2 entries, only 1 of them different"):
        gather_pages(pool, ids(1, 3), pages, group_heads=2, rows=ids(0, 0))

    assert bool((pages == 0xA5).all())


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(TypeError, match=r"unexpected arguments \['row'\]"):
        gather_pages(build(CASE, seed=1).pool, ids(0), pages_of(), group_heads=2, row=ids(0))  # type: ignore[call-arg]


POOLS_REFUSED: dict[str, tuple[list[Tensor], list[Tensor], int, str]] = {
    "no layer": ([], [], 4, "at least one layer, got 0"),
    "fewer values": ([heads(), heads()], [heads()], 4, "2 layers of K has 1 layers of V"),
    "other heads": (
        [heads(), heads(count=3)],
        [heads(), heads()],
        4,
        r"K of layer 1 is \[S, 3, 4\].* layer 0 \[S, 2, 4\]",
    ),
    "other dtype": ([heads(), heads(dtype=torch.int32)], [heads()] * 2, 4, "torch.int32.* torch.float32"),
    "K and V of other heads": ([heads()], [heads(count=1)], 4, r"K is \[S, 2, 4\].* V is \[S, 1, 4\]"),
    "other distance": ([heads(), heads(dim=8)[..., :4]], [heads()] * 2, 4, "do not lie together|64 bytes.* 32 bytes"),
    "heads apart": (
        [heads(dim=8)[..., :4]],
        [heads()],
        4,
        r"do not lie together: shape \[8, 2, 4\], strides \[16, 8, 1\]",
    ),
    "slots on one another": ([heads()[:1].expand(8, 2, 4)], [heads()], 4, "slots of 8 elements lie 0 elements apart"),
    "less than a page": ([heads(slots=3)], [heads()], 4, "3 slots has no page of 4 tokens"),
    "no tokens": ([heads()], [heads()], 0, "page_tokens = 0"),
    "one axis": ([torch.zeros(8)], [], 4, r"\[S, H, D\] with at least one row, got \[8\]"),
}


@pytest.mark.parametrize("name", POOLS_REFUSED)
def test_tensors_that_make_no_pool_are_refused(name: str) -> None:
    keys, values, page_tokens, message = POOLS_REFUSED[name]

    with pytest.raises(LayoutError, match=message):
        DevicePool.of_layers(keys, values, page_tokens)


def test_a_stacked_tensor_of_another_shape_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"\[L, 2, S, H, D\] or \[L, S, 1, D\], got \[2, 3, 8, 2, 4\]"):
        DevicePool.of_stacked(torch.zeros(2, 3, 8, 2, 4), 4)


def test_a_draft_with_other_pages_or_rows_is_refused() -> None:
    pool = DevicePool.of_layers([heads()], [heads()], 4)

    with pytest.raises(LayoutError, match="draft pages have 2 tokens, the pool's 4"):
        pool.with_draft(DevicePool.of_layers([heads()], [heads()], 2))
    with pytest.raises(LayoutError, match="the draft has 0 layers of V for 1 of K, the pool 1 for 1"):
        pool.with_draft(DevicePool.of_layers([heads(count=1)], [], 4))
    with pytest.raises(LayoutError, match=r"K of layer 1 is \[S, 2, 8\].* layer 0 \[S, 2, 4\]"):
        pool.with_draft(DevicePool.of_layers([heads(dim=8)], [heads(dim=8)], 4))
