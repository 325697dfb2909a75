"""How a move becomes launches of a kernel."""

from __future__ import annotations

import pytest
import torch

from hicache_storage.errors import LayoutError
from hicache_storage.kernels import launches as launching
from hicache_storage.kernels.launches import Launch, launches
from hicache_storage.kernels.move import PageMove
from tests.kernels.cases import BY_NAME, DEVICE, build, check_gather, everything
from tests.kernels.triton_modules import load_kernels, require_triton


def launches_of(name: str) -> list[Launch]:
    case = BY_NAME[name]
    pages = torch.zeros(case.pages, case.geometry.page_nbytes, dtype=torch.uint8, device=DEVICE)
    pool = build(case, seed=None).pool
    return list(launches(PageMove.check(pool, pages, torch.arange(case.pages), group_heads=case.group_heads)))


@pytest.mark.parametrize("name", ["head_groups", "stacked", "mla", "mla_stacked"])
def test_one_launch_moves_all_layers(name: str) -> None:
    assert len(launches_of(name)) == 1


def test_keys_and_values_of_different_width_take_a_launch_each() -> None:
    assert len(launches_of("wider_keys")) == 2


@pytest.mark.parametrize(
    ("name", "unit", "dtype"),
    [
        ("inline_scales", 16, torch.int64),
        ("distant_slots", 8, torch.int64),
        ("two_of_everything", 4, torch.int32),
        ("misaligned", 2, torch.int16),
        ("three_bytes", 1, torch.uint8),
    ],
)
def test_the_widest_unit_that_divides_everything_moves(name: str, unit: int, dtype: torch.dtype) -> None:
    launch = launches_of(name)[0]

    assert (launch.constants[2], launch.tensors[0].dtype) == (unit, dtype)


def test_more_pages_than_a_grid_has_are_moved_by_more_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    require_triton()
    load_kernels()
    monkeypatch.setattr(launching, "_GRID_LIMIT", 3)
    case = BY_NAME["mla"]

    assert [launch.grid[2] for launch in launches_of("mla")] == [3, 1]
    check_gather(case, everything(case), "triton")


def test_a_page_that_no_grid_can_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_GRID_LIMIT", 2)

    with pytest.raises(LayoutError, match="3 stretches of 27 elements in a page; a launch takes 2"):
        launches_of("mla")
