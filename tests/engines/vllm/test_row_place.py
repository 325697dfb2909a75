"""Where an engine keeps its rows is found out by writing, for any regular packing, and refused for any other."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from hicache_storage.engine_integration.adapters.vllm.row_place import (
    Axis,
    WriteBlock,
    measure_latent,
    measure_places,
)
from hicache_storage.errors import LayoutError

N, H, D = 32, 3, 64


def token_major(keys: Tensor, values: Tensor) -> Tensor:
    return torch.cat([keys, values], dim=2).flatten()


def head_major(keys: Tensor, values: Tensor) -> Tensor:
    return torch.cat([keys, values], dim=2).transpose(0, 1).flatten()


def halves_with_transposed_keys(keys: Tensor, values: Tensor) -> Tensor:
    """As vLLM's CPU backend does for vector units."""
    return torch.cat([keys.permute(1, 2, 0).flatten(1), values.permute(1, 0, 2).flatten(1)], dim=1).flatten()


def tiles(keys: Tensor, values: Tensor) -> Tensor:
    """As vLLM's CPU backend does for AMX: tiles of 16 rows, two elements side by side."""
    k = keys.view(N // 16, 16, H, D // 2, 2).permute(2, 0, 3, 1, 4).flatten(1)
    v = values.view(N // 2, 2, H, D // 16, 16).permute(2, 3, 0, 4, 1).flatten(1)
    return torch.cat([k, v], dim=1).flatten()


def two_kernel_blocks(latent: Tensor) -> Tensor:
    """As where the attention kernel's block is half of vLLM's, with a gap behind each half."""
    return torch.nn.functional.pad(latent.view(2, -1), (0, 40)).flatten()


PACKINGS = [token_major, head_major, halves_with_transposed_keys, tiles]


@pytest.mark.parametrize("pack", PACKINGS, ids=lambda pack: pack.__name__)
def test_rows_are_read_where_the_engine_writes_them(pack: WriteBlock, rng: random.Random) -> None:
    torch.manual_seed(rng.randrange(1 << 30))
    keys, values = torch.randn(N, H, D), torch.randn(N, H, D)

    places = measure_places(pack, N, H, D)

    blocks = torch.stack([pack(-keys, -values), pack(keys, values)])
    for place, rows in zip(places, (keys, values), strict=True):
        assert torch.equal(place.cells(blocks)[1].reshape(N, H, D), rows)


def test_rows_may_have_gaps_between_them() -> None:
    def padded(keys: Tensor, values: Tensor) -> Tensor:
        return torch.nn.functional.pad(torch.cat([keys, values], dim=2), (0, 32)).flatten()

    place, _ = measure_places(padded, N, H, D)

    assert place.tokens == Axis((N,), (H * (2 * D + 32),))


def test_rows_in_a_random_order_are_refused() -> None:
    order = torch.randperm(2 * N * H * D, generator=torch.Generator().manual_seed(1))

    with pytest.raises(LayoutError, match=r"grid|strides"):
        measure_places(lambda keys, values: token_major(keys, values)[order], N, H, D)


def test_rows_that_come_back_changed_are_refused() -> None:
    with pytest.raises(LayoutError, match="does not give back"):
        measure_places(lambda keys, values: token_major(keys * 0.3, values), N, H, D)


def test_rows_that_do_not_come_back_are_refused() -> None:
    with pytest.raises(LayoutError, match="not found again"):
        measure_places(lambda keys, values: keys.flatten(), N, H, D)


def test_latent_rows_are_read_where_the_engine_writes_them() -> None:
    latent = torch.randn(N, 24)

    place = measure_latent(two_kernel_blocks, N, 24)

    blocks = torch.stack([two_kernel_blocks(-latent), two_kernel_blocks(latent)])
    assert torch.equal(place.cells(blocks)[1].reshape(N, 24), latent)


def test_latent_rows_of_another_width_are_refused() -> None:
    with pytest.raises(LayoutError, match="not found again"):
        measure_latent(lambda latent: latent[:, :-1].flatten(), N, 24)


@pytest.mark.parametrize(
    ("offsets", "sizes", "strides"),
    [
        ([0], (1,), (1,)),
        ([0, 5, 10], (3,), (5,)),
        ([0, 1, 100, 101], (2, 2), (100, 1)),
        ([0, 2, 10, 12, 100, 102, 110, 112], (2, 2, 2), (100, 10, 2)),
    ],
)
def test_an_axis_has_as_many_levels_as_it_needs(
    offsets: list[int], sizes: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    assert Axis.of(offsets) == Axis(sizes, strides)


def test_an_axis_without_strides_is_refused() -> None:
    with pytest.raises(LayoutError, match="no strides"):
        Axis.of([0, 1, 3, 4, 5, 9])
