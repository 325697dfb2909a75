"""Blocks become page_unified pages and back to the byte, whatever their packing, page size, heads and dtype."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from hicache_storage.engine_integration.adapters.vllm.blocks import EngineBlocks
from hicache_storage.engine_integration.adapters.vllm.row_place import WriteBlock, measure_latent, measure_places
from hicache_storage.errors import LayoutError
from hicache_storage.layout import Grid, KVShape, Shard, ShardLayout
from tests.engines.vllm.test_row_place import PACKINGS, D, H, N

LAYERS, BLOCKS = 3, 7
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn}


@dataclass
class Pool:
    """An engine's KV and the same rows as plain tensors, ``[L, 2, B, N, H, D]`` of bytes."""

    blocks: EngineBlocks
    rows: Tensor
    layers: list[Tensor]
    layout: ShardLayout


def layout_of(dtype: str, *, page_blocks: int, group_heads: int, tokens: int = N) -> ShardLayout:
    shape = KVShape.mha(num_layers=LAYERS, num_kv_heads=H, head_dim=D, dtype=dtype, page_tokens=page_blocks * tokens)
    return ShardLayout(shape, Grid(LAYERS, group_heads), Shard(range(LAYERS), range(H)))


def make_pool(pack: WriteBlock, dtype: str, layout: ShardLayout) -> Pool:
    torch.manual_seed(3)
    unit = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[layout.shape.item_nbytes]
    rows = torch.randint(-(2**31), 2**31, (LAYERS, 2, BLOCKS, N, H, D)).to(unit)
    packed = [torch.stack([pack(*rows[layer, :, block]) for block in range(BLOCKS)]) for layer in range(LAYERS)]
    layers = [layer.view(DTYPES[dtype]) for layer in packed]
    return Pool(EngineBlocks(layers, *measure_places(pack, N, H, D), layout), rows, layers, layout)


def expected_pages(pool: Pool, ids: list[int]) -> Tensor:
    """Return the pages by the definition of page_unified: (head_group, layer, K/V, token, head_in_group, head_dim)."""
    layout = pool.layout
    per_page = layout.shape.page_tokens // N
    rows = pool.rows[:, :, ids].view(LAYERS, 2, -1, per_page * N, layout.groups, layout.group_heads, D)
    return rows.permute(2, 4, 0, 1, 3, 5, 6).contiguous().view(torch.uint8).view(-1, layout.page_nbytes)


@pytest.mark.parametrize("pack", PACKINGS, ids=lambda pack: pack.__name__)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("page_blocks", "group_heads"), [(1, 3), (1, 1), (2, 1)])
def test_gathered_pages_are_page_unified(pack: WriteBlock, dtype: str, page_blocks: int, group_heads: int) -> None:
    pool = make_pool(pack, dtype, layout_of(dtype, page_blocks=page_blocks, group_heads=group_heads))
    ids = [5, 0, 3, 6]
    pages = torch.empty(len(ids) // page_blocks, pool.layout.page_nbytes, dtype=torch.uint8)

    pool.blocks.gather(ids, pages)

    assert torch.equal(pages, expected_pages(pool, ids))


@pytest.mark.parametrize("pack", PACKINGS, ids=lambda pack: pack.__name__)
@pytest.mark.parametrize(("page_blocks", "group_heads"), [(1, 1), (2, 3)])
def test_scattered_pages_are_where_the_engine_reads_them(pack: WriteBlock, page_blocks: int, group_heads: int) -> None:
    layout = layout_of("bfloat16", page_blocks=page_blocks, group_heads=group_heads)
    source, target = make_pool(pack, "bfloat16", layout), make_pool(pack, "bfloat16", layout)
    for layer in target.layers:
        layer.view(torch.uint8).fill_(0xA5)
    untouched = [layer.clone() for layer in target.layers]
    pages = expected_pages(source, [1, 2, 4, 6])

    target.blocks.scatter(pages, [1, 2, 3], [2, 5, 0])

    for layer, before, filled in zip(target.layers, untouched, source.layers, strict=True):
        for block in range(BLOCKS):
            wanted = {2: filled[2], 5: filled[4], 0: filled[6]}.get(block, before[block])
            assert torch.equal(layer[block].view(torch.uint8), wanted.view(torch.uint8))


def test_latent_blocks_are_pages_of_whole_rows() -> None:
    shape = KVShape.mla(num_layers=2, latent_dim=12, dtype="bfloat16", page_tokens=8)
    layout = ShardLayout(shape, Grid(1, 0), Shard(range(2), range(0)))
    layers = [torch.randint(0, 99, (5, 1, 4, 12)).to(torch.bfloat16) for _ in range(2)]
    pages = torch.empty(1, layout.page_nbytes, dtype=torch.uint8)

    EngineBlocks(layers, measure_latent(Tensor.flatten, 4, 12), None, layout).gather([4, 1], pages)

    wanted = torch.stack([layer[[4, 1]].reshape(8, 12) for layer in layers])
    assert torch.equal(pages.view(torch.bfloat16).view(2, 8, 12), wanted)


def test_layers_that_differ_are_refused() -> None:
    pool = make_pool(PACKINGS[0], "bfloat16", layout_of("bfloat16", page_blocks=1, group_heads=3))
    layers = [*pool.layers[:2], torch.zeros(BLOCKS + 1, pool.layers[0].shape[1], dtype=torch.bfloat16)]

    with pytest.raises(LayoutError, match="KV layer 2"):
        EngineBlocks(layers, *measure_places(PACKINGS[0], N, H, D), pool.layout)


def test_pages_that_are_no_whole_blocks_are_refused() -> None:
    pool = make_pool(PACKINGS[0], "bfloat16", layout_of("bfloat16", page_blocks=1, group_heads=3))

    places = measure_places(PACKINGS[0], N, H, D)
    layout = layout_of("bfloat16", page_blocks=3, group_heads=3, tokens=N // 2)

    with pytest.raises(LayoutError, match="not made of blocks"):
        EngineBlocks(pool.layers, *places, layout)
