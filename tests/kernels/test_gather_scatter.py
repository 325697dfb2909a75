"""Both implementations move exactly the bytes of the specification."""

from __future__ import annotations

import pytest
import torch

from hicache_storage.kernels import DevicePool, Impl, gather_pages, scatter_pages
from tests.kernels import oracle
from tests.kernels.cases import BY_NAME, CASES, DEVICE, Case, a_part, build, check_gather, check_scatter, everything


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gather_writes_the_bytes_of_the_specification(case: Case, impl: Impl) -> None:
    check_gather(case, everything(case), impl)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_scatter_writes_the_bytes_of_the_specification(case: Case, impl: Impl) -> None:
    check_scatter(case, everything(case), impl)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gather_moves_only_the_layers_rows_and_tokens_it_is_told(case: Case, impl: Impl) -> None:
    check_gather(case, a_part(case), impl)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_scatter_moves_only_the_layers_rows_and_tokens_it_is_told(case: Case, impl: Impl) -> None:
    check_scatter(case, a_part(case), impl)


@pytest.mark.parametrize("name", ["head_groups", "stacked", "mla", "mla_stacked"])
def test_rows_follow_the_order_of_the_page_ids_unless_they_are_given(name: str, impl: Impl) -> None:
    case = BY_NAME[name]
    built = build(case, seed=3)
    ids = torch.tensor([3, 0, 1])
    given = torch.zeros(3, case.geometry.page_nbytes, dtype=torch.uint8, device=DEVICE)
    unsaid = torch.zeros_like(given)

    gather_pages(built.pool, ids, given, group_heads=case.group_heads, impl=impl, rows=torch.arange(3))
    gather_pages(built.pool, ids, unsaid, group_heads=case.group_heads, impl=impl)

    assert torch.equal(given, unsaid)


def test_a_page_may_be_gathered_twice_and_a_row_scattered_twice(impl: Impl) -> None:
    case = BY_NAME["head_groups"]
    layers, tokens = range(case.layers), case.page_tokens

    check_gather(case, oracle.Selection([2, 2, 1], [0, 1, 2], layers, tokens), impl)
    check_scatter(case, oracle.Selection([2, 3, 1], [0, 1, 1], layers, tokens), impl)


def test_layers_one_by_one_make_a_whole_page(impl: Impl) -> None:
    case = BY_NAME["wider_keys"]
    built = build(case, seed=4)
    whole = torch.zeros(2, case.geometry.page_nbytes, dtype=torch.uint8, device=DEVICE)
    by_layer = torch.zeros_like(whole)
    ids = torch.tensor([1, 3])

    gather_pages(built.pool, ids, whole, group_heads=case.group_heads, impl=impl)
    for layer in range(case.layers):
        part = range(layer, layer + 1)
        gather_pages(built.pool, ids, by_layer, group_heads=case.group_heads, impl=impl, layers=part)

    assert torch.equal(whole, by_layer)


def test_draft_layers_lie_behind_those_of_the_model(impl: Impl) -> None:
    case = BY_NAME["head_groups"]
    model, draft = build(case, seed=5), build(case, seed=6)
    both = model.pool.with_draft(draft.pool)
    ids = torch.tensor([3, 2])
    packed = torch.zeros(2, 2 * case.geometry.page_nbytes, dtype=torch.uint8, device=DEVICE)
    gather_pages(both, ids, packed, group_heads=case.heads, impl=impl)

    for number, pool in enumerate((model.pool, draft.pool)):
        alone = torch.zeros(2, case.geometry.page_nbytes, dtype=torch.uint8, device=DEVICE)
        gather_pages(pool, ids, alone, group_heads=case.heads, impl=impl)

        assert torch.equal(packed[:, number * alone.shape[1] : (number + 1) * alone.shape[1]], alone)


def test_every_16_bit_pattern_survives_gather_and_scatter(impl: Impl) -> None:
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    kv = patterns.view(2, 2, 4, 2, 2048).to(DEVICE)
    pool = DevicePool.of_stacked(kv, page_tokens=2)
    back = torch.zeros_like(kv)
    pages = torch.zeros(2, pool.page_format(1).page_nbytes, dtype=torch.uint8, device=DEVICE)
    ids = torch.tensor([1, 0])

    gather_pages(pool, ids, pages, group_heads=1, impl=impl)
    scatter_pages(pages, DevicePool.of_stacked(back, page_tokens=2), ids, group_heads=1, impl=impl)

    assert torch.equal(back.view(torch.int16), kv.view(torch.int16))
    assert len(set(pages.view(torch.int16).flatten().tolist())) == 65536


def test_slots_beyond_4_gib_of_the_pool_are_reached(impl: Impl) -> None:
    # Slots of an odd number of bytes, so that bytes are counted one by one: page 319 starts behind 2**31, page 600
    # behind 2**32. The memory is never touched but for two rows.
    distance = 7_864_321
    memory = torch.empty(640 * distance, dtype=torch.uint8, device=DEVICE)
    pool = DevicePool.of_layers([memory.as_strided((640, 1, 5), (distance, 5, 1))], (), page_tokens=1)
    pages = torch.zeros(2, 5, dtype=torch.uint8, device=DEVICE)
    written = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]], dtype=torch.uint8, device=DEVICE)
    ids = torch.tensor([319, 600], dtype=torch.int32)

    scatter_pages(written, pool, ids, group_heads=0, impl=impl)
    gather_pages(pool, ids, pages, group_heads=0, impl=impl)

    assert memory[319 * distance : 319 * distance + 5].tolist() == [1, 2, 3, 4, 5]
    assert memory[600 * distance : 600 * distance + 5].tolist() == [6, 7, 8, 9, 10]
    assert torch.equal(pages, written)


def test_no_page_moves_nothing(impl: Impl) -> None:
    case = BY_NAME["head_groups"]
    pool = build(case, seed=7).pool
    pages = torch.zeros(1, case.geometry.page_nbytes, dtype=torch.uint8, device=DEVICE)

    gather_pages(pool, torch.zeros(0, dtype=torch.int64), pages, group_heads=2, impl=impl)

    assert not pages.any()


@pytest.mark.parametrize("name", ["wider_keys", "head_groups", "stacked"])
def test_pools_and_pages_of_inference_mode_are_written_outside_of_it(name: str, impl: Impl) -> None:
    case = BY_NAME[name]
    with torch.inference_mode():
        built = build(case, seed=None)
        pages = torch.ones(1, case.geometry.page_nbytes, dtype=torch.uint8, device=DEVICE)

    scatter_pages(pages, built.pool, torch.tensor([1]), group_heads=case.group_heads, impl=impl)
    gather_pages(built.pool, torch.tensor([0]), pages, group_heads=case.group_heads, impl=impl)

    assert int(built.planes[1][0][case.page_tokens, 0]) == 1
    assert bool((pages == 0xA5).all())
