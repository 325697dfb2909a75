"""A scatter list names exactly the bytes that a copy would give, or there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hicache_storage.errors import LayoutError
from hicache_storage.kernels.relayout import to_page_unified
from hicache_storage.layout import Grid, KVShape, Shard, ShardLayout
from hicache_storage.layout.host_pool_layout import HostPoolLayout
from tests.kernels.relayout.oracle import Sizes
from tests.kernels.relayout.pools import CASES, GUARD, Case, GuardedPages, GuardedPool

FLAGSHIP = KVShape.mha(num_layers=60, num_kv_heads=8, head_dim=128, dtype="bfloat16", page_tokens=64)


def page_layout(case: Case) -> ShardLayout:
    """Return the page of *case*: one byte an element, all layers and heads on one rank."""
    sizes = case.sizes
    if not sizes.v_row:
        shape = KVShape.mla(
            num_layers=sizes.layers, latent_dim=sizes.k_row, dtype="uint8", page_tokens=sizes.page_tokens
        )
        return ShardLayout(shape, Grid(1, 0), Shard(layers=range(sizes.layers), heads=range(0)))
    shape = KVShape.mha(
        num_layers=sizes.layers,
        num_kv_heads=sizes.heads,
        head_dim=sizes.k_row,
        v_head_dim=sizes.v_row,
        dtype="uint8",
        page_tokens=sizes.page_tokens,
    )
    return ShardLayout(shape, Grid(1, case.group_heads), Shard(layers=range(sizes.layers), heads=range(sizes.heads)))


def pool_layout(case: Case, pool: GuardedPool) -> HostPoolLayout:
    page = page_layout(case)
    v_start = len(pool.halves[0].reshape(-1)) + GUARD
    return HostPoolLayout(name=case.layout, page=page, num_pages=case.sizes.pages, v_start=v_start)


def layer_ranges(layers: int) -> list[range]:
    return [range(start, stop) for start in range(layers) for stop in range(start + 1, layers + 1)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_runs_hold_the_bytes_that_a_copy_gives(case: Case) -> None:
    pool = GuardedPool(case)
    layout = pool_layout(case, pool)
    out = GuardedPages(case.sizes.pages, case.sizes.page_nbytes)
    to_page_unified(pool.host, torch.arange(case.sizes.pages), out.pages, group_heads=case.group_heads)
    memory = pool.arena[GUARD:].numpy().tobytes()

    for page in range(case.sizes.pages):
        for layers in layer_ranges(case.sizes.layers):
            for group in range(layout.page.groups):
                offset, length = layout.page.chunk_span(layers, group)
                runs = layout.chunk_runs(page, layers, group)
                if runs is not None:
                    listed = b"".join(memory[start : start + nbytes] for start, nbytes in runs)
                    assert listed == out.row(page)[offset : offset + length]
                    assert len(runs) <= 2 * len(layers)


def local(name: str, shape: KVShape, group_heads: int, pages: int = 10) -> HostPoolLayout:
    heads = range(shape.num_kv_heads)
    page = ShardLayout(shape, Grid(1, group_heads), Shard(layers=range(shape.num_layers), heads=heads))
    return HostPoolLayout(name=name, page=page, num_pages=pages)


@pytest.mark.parametrize("name", ["layer_first", "page_first_direct"])
def test_all_heads_of_a_rank_are_a_run_per_layer_and_k_or_v(name: str) -> None:
    runs = local(name, FLAGSHIP, 8).chunk_runs(3, range(60), 0)

    assert runs is not None
    assert len(runs) == 120
    assert {length for _, length in runs} == {64 * 8 * 128 * 2}


@pytest.mark.parametrize("name", ["layer_first", "page_first", "page_first_direct", "page_head"])
def test_a_finer_head_group_must_be_copied(name: str) -> None:
    assert local(name, FLAGSHIP, 4).chunk_runs(3, range(60), 1) is None


@pytest.mark.parametrize("name", ["page_first", "page_head"])
def test_tokens_that_hold_their_layers_must_be_copied(name: str) -> None:
    assert local(name, FLAGSHIP, 8).chunk_runs(3, range(60), 0) is None


def test_a_latent_page_of_page_first_direct_is_page_unified_already() -> None:
    shape = KVShape.mla(num_layers=61, latent_dim=576, dtype="bfloat16", page_tokens=64)
    pool = local("page_first_direct", shape, 0)
    layer = 64 * 576 * 2

    assert pool.chunk_runs(7, range(61), 0) == ((7 * 61 * layer, 61 * layer),)
    assert pool.chunk_runs(7, range(20, 40), 0) == (((7 * 61 + 20) * layer, 20 * layer),)


def test_a_page_unified_pool_has_one_run_a_chunk() -> None:
    pool = local("page_unified", FLAGSHIP, 2)
    offset, length = pool.page.chunk_span(range(30, 60), 3)

    assert pool.chunk_runs(4, range(30, 60), 3) == ((4 * pool.page.page_nbytes + offset, length),)


@pytest.mark.parametrize("name", ["page_first_direct", "page_unified"])
def test_no_layers_are_no_runs(name: str) -> None:
    assert local(name, FLAGSHIP, 8).chunk_runs(0, range(5, 5), 0) == ()


def test_offsets_reach_beyond_four_gigabytes() -> None:
    runs = local("page_first_direct", FLAGSHIP, 8, pages=1 << 20).chunk_runs((1 << 20) - 1, range(1), 0)

    k_page = 60 * 64 * 8 * 128 * 2
    assert runs == (((2**20 - 1) * k_page, k_page // 60), ((2**21 - 1) * k_page, k_page // 60))


@pytest.mark.parametrize(
    ("page", "layers", "group"), [(10, range(1), 0), (-1, range(1), 0), (0, range(61), 0), (0, range(1), 1)]
)
def test_a_chunk_outside_the_pool_is_refused(page: int, layers: range, group: int) -> None:
    with pytest.raises(LayoutError, match=r"(is|are) not in"):
        local("page_first", FLAGSHIP, 8).chunk_runs(page, layers, group)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"name": "token_first"}, "is not one of"), ({"num_pages": 0}, "holds nothing")],
)
def test_a_pool_that_cannot_be_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        replace(local("page_first", FLAGSHIP, 8), **change)  # type: ignore[arg-type]


def test_rows_of_two_widths_need_the_place_of_v() -> None:
    case = Case("page_first", Sizes(layers=2, heads=2, page_tokens=2, pages=2, k_row=8, v_row=4), 2)

    with pytest.raises(LayoutError, match="v_start is their distance"):
        HostPoolLayout(name="page_first", page=page_layout(case), num_pages=2)
