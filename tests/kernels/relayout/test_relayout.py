"""Every byte of every page arrives where the written axes say, and nothing else is touched."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

import numpy as np
import pytest
import torch

from hicache_storage.errors import LayoutError
from hicache_storage.kernels.relayout import EngineHostPool, from_page_unified, to_page_unified
from hicache_storage.kernels.relayout.reference import gather
from tests.kernels.relayout.oracle import Sizes, spans_of_layers
from tests.kernels.relayout.pools import CASES, LAYOUTS, MHA_SIZES, SPLIT_SIZES, Case, GuardedPages, GuardedPool

LARGE = MHA_SIZES[-1]
"""Its pages are large enough to be copied one by one."""
PLAIN = [Case(layout, sizes, 1) for layout in LAYOUTS for sizes in (MHA_SIZES[0], LARGE)]


def ids(values: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pages_hold_what_the_written_axes_say(case: Case) -> None:
    pool = GuardedPool(case)
    order = list(reversed(range(case.sizes.pages)))
    out = GuardedPages(len(order), case.sizes.page_nbytes)

    to_page_unified(pool.host, ids(order), out.pages, group_heads=case.group_heads)

    assert [out.row(row) for row in range(len(order))] == [pool.page(page) for page in order]
    out.assert_untouched_outside()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_pool_filled_from_pages_holds_what_the_written_axes_say(case: Case) -> None:
    source, target = GuardedPool(case, seed=1), GuardedPool(case, seed=77)
    kept = target.page(0)
    pages = GuardedPages(case.sizes.pages, case.sizes.page_nbytes)
    to_page_unified(source.host, torch.arange(case.sizes.pages), pages.pages, group_heads=case.group_heads)
    order = list(range(case.sizes.pages))[:0:-1]

    from_page_unified(pages.pages, target.host, ids(order), rows=ids(order), group_heads=case.group_heads)

    assert [target.page(page) for page in order] == [source.page(page) for page in order]
    assert target.page(0) == kept
    target.assert_untouched_outside()


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_rows_choose_where_pages_go(case: Case) -> None:
    pool = GuardedPool(case)
    out = GuardedPages(5, case.sizes.page_nbytes)

    to_page_unified(pool.host, ids([0, 1, 0]), out.pages, rows=ids([2, 3, 0]), group_heads=1)

    assert [out.row(row) for row in (2, 3, 0)] == [pool.page(page) for page in (0, 1, 0)]
    assert out.is_poison(1)
    assert out.is_poison(4)
    out.assert_untouched_outside()


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_one_row_may_fill_many_pages(case: Case) -> None:
    source, target = GuardedPool(case, seed=1), GuardedPool(case, seed=77)
    pages = GuardedPages(2, case.sizes.page_nbytes)
    to_page_unified(source.host, ids([0, 1]), pages.pages, group_heads=1)

    from_page_unified(pages.pages, target.host, ids([2, 0]), rows=ids([1, 1]), group_heads=1)

    assert [target.page(2), target.page(0)] == [source.page(1)] * 2


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_layers_that_were_not_named_keep_their_bytes(case: Case) -> None:
    pool = GuardedPool(case)
    out = GuardedPages(1, case.sizes.page_nbytes)
    moved = list(spans_of_layers(case.sizes, 1, range(1, 2)))

    to_page_unified(pool.host, ids([1]), out.pages, layers=range(1, 2), group_heads=1)

    expected = np.full(case.sizes.page_nbytes, 0xA5, np.uint8)
    expected[moved] = np.frombuffer(pool.page(1), np.uint8)[moved]
    assert out.row(0) == expected.tobytes()


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_a_pool_keeps_the_layers_that_were_not_named(case: Case) -> None:
    source, target = GuardedPool(case, seed=1), GuardedPool(case, seed=77)
    pages = GuardedPages(1, case.sizes.page_nbytes)
    to_page_unified(source.host, ids([1]), pages.pages, group_heads=1)
    expected = np.frombuffer(target.page(0), np.uint8).copy()
    moved = list(spans_of_layers(case.sizes, 1, range(1)))

    from_page_unified(pages.pages, target.host, ids([0]), layers=range(1), group_heads=1)

    expected[moved] = np.frombuffer(source.page(1), np.uint8)[moved]
    assert target.page(0) == expected.tobytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_elements_of_any_dtype_move_as_bytes(layout: str, dtype: torch.dtype) -> None:
    pool = GuardedPool(Case(layout, MHA_SIZES[0], 2), dtype=dtype)
    out = GuardedPages(2, MHA_SIZES[0].page_nbytes)

    to_page_unified(pool.host, ids([3, 1], torch.int32), out.pages, group_heads=2)

    assert [out.row(0), out.row(1)] == [pool.page(3), pool.page(1)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_16_bit_pattern_survives_the_round_trip(layout: str) -> None:
    case = Case(layout, Sizes(layers=2, heads=2, page_tokens=64, pages=1, k_row=256, v_row=256), 1)
    source, target = GuardedPool(case), GuardedPool(case, seed=77, dtype=torch.bfloat16)
    patterns = np.arange(1 << 16, dtype="<u2").view(np.uint8)
    for half in source.halves:
        half[...] = patterns[: half.size].reshape(half.shape)
        patterns = np.roll(patterns, -half.size)
    out = GuardedPages(1, case.sizes.page_nbytes)

    to_page_unified(source.host, ids([0]), out.pages, group_heads=1)
    from_page_unified(out.pages, target.host, ids([0]), group_heads=1)

    assert all((mine == theirs).all() for mine, theirs in zip(source.halves, target.halves, strict=True))


def test_rows_at_an_odd_address_arrive_all_the_same() -> None:
    case = Case("page_first", MHA_SIZES[0], 2)
    pool = GuardedPool(case)
    arena = torch.zeros(3, case.sizes.page_nbytes + 13, dtype=torch.uint8)

    to_page_unified(pool.host, ids([1, 2]), arena[1:, 13:], group_heads=2)

    assert [arena[row, 13:].numpy().tobytes() for row in (1, 2)] == [pool.page(1), pool.page(2)]
    assert not arena[:, :13].any()
    assert not arena[0].any()


def test_no_pages_is_no_work() -> None:
    pool = GuardedPool(PLAIN[0])
    out = GuardedPages(1, PLAIN[0].sizes.page_nbytes)

    to_page_unified(pool.host, ids([]), out.pages, group_heads=1)
    from_page_unified(out.pages, pool.host, ids([]), group_heads=1)

    assert out.is_poison(0)


def test_the_engines_one_tensor_is_taken_as_it_is() -> None:
    sizes = MHA_SIZES[0]
    kv_buffer = torch.arange(sizes.pages * sizes.page_nbytes).to(torch.uint8)
    kv_buffer = kv_buffer.view(2, sizes.pages * sizes.page_tokens, sizes.layers, sizes.heads, sizes.k_row)

    pool = EngineHostPool.of("page_first", kv_buffer, page_tokens=sizes.page_tokens, is_mla=False)

    assert pool.values is not None
    assert pool.keys.data_ptr() == kv_buffer.data_ptr()
    assert pool.values.data_ptr() == kv_buffer.data_ptr() + kv_buffer.nbytes // 2


WRONG_POOLS = {
    "unknown layout": ("token_first", (6, 2, 2, 4), (6, 2, 2, 4), "is not one of"),
    "MLA by heads": ("page_head", (3, 1, 2, 2, 4), None, "MLA rows have none"),
    "two widths": ("layer_first", (2, 6, 2, 4), (2, 6, 2, 8), "rows of one width"),
    "an axis too few": ("page_first_direct", (3, 2, 2, 4), (3, 2, 2, 4), "has 5 axes"),
    "half a page": ("page_first", (7, 2, 2, 4), (7, 2, 2, 4), "no pages of 2 tokens"),
    "pages of another size": ("page_first_direct", (3, 2, 3, 2, 4), (3, 2, 3, 2, 4), "no pages of 2 tokens"),
    "fewer V than K": ("page_first", (6, 2, 2, 4), (4, 2, 2, 4), "different rows"),
    "MLA with heads": ("page_first", (6, 2, 2, 4), None, "one row a token"),
}


@pytest.mark.parametrize(("layout", "keys", "values", "message"), WRONG_POOLS.values(), ids=WRONG_POOLS)
def test_a_pool_that_the_engine_does_not_have_is_refused(
    layout: str, keys: tuple[int, ...], values: tuple[int, ...] | None, message: str
) -> None:
    with pytest.raises(LayoutError, match=message):
        EngineHostPool(layout, torch.zeros(keys), None if values is None else torch.zeros(values), 2)


def test_rows_whose_elements_lie_apart_are_refused() -> None:
    keys = torch.zeros(6, 2, 2, 8)[..., ::2]

    with pytest.raises(LayoutError, match="must adjoin"):
        EngineHostPool("page_first", keys, keys, 2)


def test_a_buffer_of_one_half_is_no_pool_of_k_and_v() -> None:
    with pytest.raises(LayoutError, match="two halves, got 1"):
        EngineHostPool.of("page_first", torch.zeros(1, 6, 2, 2, 4), page_tokens=2, is_mla=False)


PAGE = PLAIN[0].sizes.page_nbytes
WRONG_CALLS = {
    "page out of range": ({"page_ids": ids([4])}, r"page_ids reach from 4 to 4, expected \[0, 4\)"),
    "negative page": ({"page_ids": ids([-1])}, "page_ids reach from -1"),
    "page ids of another type": ({"page_ids": torch.tensor([1.0])}, "expected .P. integers"),
    "too few rows": ({"page_ids": ids([0, 1, 2])}, "3 pages do not fit into 2 rows"),
    "rows of another number": ({"rows": ids([0])}, "2 page ids and 1 rows"),
    "row out of range": ({"rows": ids([0, 2])}, "rows reach from 0 to 2"),
    "a page too small": ({"pages": torch.zeros(2, PAGE - 1, dtype=torch.uint8)}, f"expected torch.uint8 .N, {PAGE}"),
    "pages of another type": ({"pages": torch.zeros(2, PAGE, dtype=torch.int8)}, "pages are torch.int8"),
    "pages apart": ({"pages": torch.zeros(2, 2 * PAGE, dtype=torch.uint8)[:, ::2]}, "bytes of a page must adjoin"),
    "pages overlapping": ({"pages": torch.zeros(PAGE, dtype=torch.uint8).expand(2, PAGE)}, "rows not overlap"),
    "pages on a device": ({"pages": torch.zeros(2, PAGE, dtype=torch.uint8, device="meta")}, "host memory"),
    "groups that do not divide": ({"group_heads": 3}, "4 heads are not made of groups of 3"),
    "no groups": ({"group_heads": 0}, "4 heads are not made of groups of 0"),
    "layers out of range": ({"layers": range(2, 4)}, r"layers \[2, 4\) are not in"),
}


@pytest.mark.parametrize(("change", "message"), WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_arguments_that_do_not_fit_are_refused_before_a_byte_moves(change: dict[str, object], message: str) -> None:
    pool = GuardedPool(PLAIN[0])
    before = pool.arena.clone()
    arguments: dict[str, object] = {
        "page_ids": ids([0, 1]),
        "pages": torch.zeros(2, PAGE, dtype=torch.uint8),
        "rows": None,
        "layers": None,
        "group_heads": 1,
    } | change
    pages = cast("torch.Tensor", arguments.pop("pages"))
    page_ids = cast("torch.Tensor", arguments.pop("page_ids"))

    with pytest.raises(LayoutError, match=message):
        to_page_unified(pool.host, page_ids, pages, **arguments)  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match=message):
        from_page_unified(pages, pool.host, page_ids, **arguments)  # type: ignore[arg-type]

    assert torch.equal(pool.arena, before)
    assert pages.device.type == "meta" or not pages.any()


def test_a_place_that_would_be_filled_twice_is_refused() -> None:
    pool = GuardedPool(PLAIN[0])
    out = GuardedPages(2, PAGE)

    with pytest.raises(LayoutError, match="rows has 2 entries, only 1"):
        to_page_unified(pool.host, ids([0, 1]), out.pages, rows=ids([1, 1]), group_heads=1)
    with pytest.raises(LayoutError, match="page_ids has 2 entries, only 1"):
        from_page_unified(out.pages, pool.host, ids([3, 3]), group_heads=1)


def test_widths_of_their_own_are_part_of_the_cases() -> None:
    assert {case.layout for case in CASES if case.sizes in SPLIT_SIZES} == {"page_first", "page_first_direct"}


FAULTS = {
    "two axes swapped": ("hicache_storage.kernels.relayout.host_pool._VIEW_AXES", ("page", "token", "layer", "head")),
    "words too wide by two": ("hicache_storage.kernels.relayout.launch.gcd", lambda most, *_: most),
    "V not moved": ("hicache_storage.kernels.relayout.launch.gather", lambda p, i, c, r: gather(p[:1], i, c[:1], r)),
    "last page not moved": (
        "hicache_storage.kernels.relayout.launch.gather",
        lambda p, i, c, r: gather(p, i[:-1], c, r),
    ),
}


@pytest.mark.parametrize(("where", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_found(where: str, fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("page_first", Sizes(layers=3, heads=2, page_tokens=3, pages=2, k_row=4, v_row=4), 1)
    pool = GuardedPool(case)
    out = GuardedPages(2, case.sizes.page_nbytes)
    monkeypatch.setattr(where, fault)

    with suppress(RuntimeError, LayoutError):
        to_page_unified(pool.host, ids([0, 1]), out.pages, group_heads=1)

    assert [out.row(0), out.row(1)] != [pool.page(0), pool.page(1)]


def test_a_pool_on_a_device_is_refused() -> None:
    keys = torch.zeros(6, 2, 2, 4, device="meta")

    with pytest.raises(LayoutError, match="host memory"):
        EngineHostPool("page_first", keys, keys, 2)
