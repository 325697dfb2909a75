"""A move of all layers is one call of torch, however the pool's tensors lie."""

from __future__ import annotations

import pytest
import torch

from hicache_storage.kernels.move import PageMove, Which
from hicache_storage.kernels.stack import stack_of
from hicache_storage.kernels.views import copies
from tests.kernels.cases import BY_NAME, DEVICE, build


def calls(name: str, *, rows: list[int] | None = None, layers: range | None = None, tail_tokens: int = 2) -> int:
    case = BY_NAME[name]
    pages = torch.zeros(case.pages, case.geometry.page_nbytes, dtype=torch.uint8, device=DEVICE)
    which = Which(layers=layers, tail_tokens=tail_tokens)
    if rows is not None:
        which["rows"] = torch.tensor(rows)
    pool = build(case, seed=None).pool
    move = PageMove.check(pool, pages, torch.arange(3), group_heads=case.group_heads, **which)
    return sum(1 for _ in copies(move))


@pytest.mark.parametrize("name", ["stacked_one_group", "mla_stacked"])
def test_layers_in_one_tensor_move_in_one_call(name: str) -> None:
    assert calls(name) == 1


def test_layers_in_separate_allocations_move_in_one_call_on_a_cpu() -> None:
    assert calls("inline_scales") == (1 if DEVICE == "cpu" else 4)


def test_host_rows_that_do_not_follow_one_another_take_a_call_each() -> None:
    assert calls("mla_stacked", rows=[0, 1, 3]) == 2


def test_a_ragged_page_takes_a_call_of_its_own() -> None:
    assert calls("mla_stacked", tail_tokens=1) == 2


def test_a_layer_range_takes_a_call_for_each_k_and_v() -> None:
    assert calls("stacked_one_group", layers=range(1, 2)) == 2


def test_tensors_with_other_rows_are_no_stack() -> None:
    narrow, wide = torch.zeros(4, 1, 8), torch.zeros(4, 1, 16)

    assert stack_of([narrow, wide]) is None
