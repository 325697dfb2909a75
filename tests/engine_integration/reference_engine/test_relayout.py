from __future__ import annotations

import pytest
import torch

from hicache_storage.engine_integration.reference_engine.kv_pool import KVPool
from hicache_storage.engine_integration.reference_engine.relayout import gather_pages, scatter_pages
from hicache_storage.errors import LayoutError
from hicache_storage.layout import Grid, KVShape, Shard, ShardLayout

POOL_PAGES = 7
PAGE_IDS = torch.tensor([5, 0, 3])
CASES = [
    # dtype, page tokens, grid, shard
    ("float32", 4, Grid(3, 1), Shard(range(3, 6), range(4))),
    ("bfloat16", 3, Grid(2, 2), Shard(range(6), range(4))),
    ("bfloat16", 1, Grid(6, 4), Shard(range(1, 4), range(1, 3))),
    ("float16", 5, Grid(5, 2), Shard(range(5, 6), range(2, 4))),
]


def shape_of(dtype: str, page_tokens: int) -> KVShape:
    return KVShape.mha(num_layers=6, num_kv_heads=4, head_dim=6, dtype=dtype, page_tokens=page_tokens)


def random_pool(layout: ShardLayout, seed: int) -> KVPool:
    """A pool of random bits, not a number among them."""
    dtype = getattr(torch, layout.shape.dtype)
    rows, heads, dim = POOL_PAGES * layout.shape.page_tokens, len(layout.shard.heads), layout.shape.head_dim
    generator = torch.Generator().manual_seed(seed)

    def tensor() -> torch.Tensor:
        raw = torch.randint(0, 256, (rows, heads, dim * dtype.itemsize), dtype=torch.uint8, generator=generator)
        return raw.view(dtype)

    layers = range(len(layout.shard.layers))
    return KVPool(tuple(tensor() for _ in layers), tuple(tensor() for _ in layers), layout.shape.page_tokens)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def naive_page(pool: KVPool, page_id: int, layout: ShardLayout) -> bytes:
    """The page as the specification words it, one row after the other."""
    page = bytearray()
    for group in range(layout.groups):
        for layer in range(len(layout.shard.layers)):
            for side in (pool.keys, pool.values):
                for token in range(layout.shape.page_tokens):
                    for head in range(layout.group_heads):
                        row = side[layer][page_id * layout.shape.page_tokens + token, group * layout.group_heads + head]
                        page += bytes(bits(row).tolist())
    return bytes(page)


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-T{case[1]}")
def layout(request: pytest.FixtureRequest) -> ShardLayout:
    dtype, page_tokens, grid, shard = request.param
    return ShardLayout(shape_of(dtype, page_tokens), grid, shard)


def test_gathered_pages_are_the_bytes_of_the_specification(layout: ShardLayout) -> None:
    pool = random_pool(layout, seed=1)
    host = torch.full((len(PAGE_IDS), layout.page_nbytes), 0xA5, dtype=torch.uint8)

    gather_pages(pool, PAGE_IDS, layout, host)

    for page, page_id in zip(host, PAGE_IDS.tolist(), strict=True):
        assert bytes(page.tolist()) == naive_page(pool, page_id, layout)


def test_scattered_pages_are_gathered_again_to_the_byte(layout: ShardLayout) -> None:
    pool, other = random_pool(layout, seed=1), random_pool(layout, seed=2)
    host, again = (torch.zeros(len(PAGE_IDS), layout.page_nbytes, dtype=torch.uint8) for _ in range(2))
    gather_pages(pool, PAGE_IDS, layout, host)

    scatter_pages(host, layout, other, PAGE_IDS.flip(0))

    gather_pages(other, PAGE_IDS.flip(0), layout, again)
    assert torch.equal(again, host)


def test_scatter_touches_no_other_page(layout: ShardLayout) -> None:
    pool, before = random_pool(layout, seed=1), random_pool(layout, seed=1)
    host = torch.zeros(len(PAGE_IDS), layout.page_nbytes, dtype=torch.uint8)

    scatter_pages(host, layout, pool, PAGE_IDS)

    others = pool.slots_of(torch.tensor([1, 2, 4, 6]))
    for now, then in zip((*pool.keys, *pool.values), (*before.keys, *before.values), strict=True):
        assert torch.equal(bits(now[others]), bits(then[others]))


def test_a_view_of_some_heads_gathers_like_a_pool_of_its_own() -> None:
    whole = ShardLayout(shape_of("float32", 4), Grid(3, 1), Shard(range(6), range(4)))
    part = ShardLayout(shape_of("float32", 4), Grid(3, 1), Shard(range(3, 6), range(1, 3)))
    pool = random_pool(whole, seed=3)
    keys, values = (tuple(tensor[:, 1:3] for tensor in side[3:6]) for side in (pool.keys, pool.values))
    view = KVPool(keys, values, 4)
    host = torch.zeros(len(PAGE_IDS), part.page_nbytes, dtype=torch.uint8)

    gather_pages(view, PAGE_IDS, part, host)

    assert bytes(host[0].tolist()) == naive_page(view, int(PAGE_IDS[0]), part)


def test_nothing_moves_where_shapes_do_not_fit() -> None:
    layout = ShardLayout(shape_of("float32", 4), Grid(3, 1), Shard(range(3), range(4)))
    other = ShardLayout(shape_of("float32", 4), Grid(3, 1), Shard(range(3), range(2)))
    halves = ShardLayout(shape_of("bfloat16", 4), Grid(3, 1), Shard(range(3), range(4)))
    short = ShardLayout(shape_of("float32", 2), Grid(3, 1), Shard(range(3), range(4)))
    pool = random_pool(layout, seed=1)

    def host(of: ShardLayout, pages: int = 3) -> torch.Tensor:
        return torch.zeros(pages, of.page_nbytes, dtype=torch.uint8)

    with pytest.raises(LayoutError, match=r"\(3, 4, 6\), the pages \(3, 2, 6\)"):
        gather_pages(pool, PAGE_IDS, other, host(other))
    with pytest.raises(LayoutError, match=r"torch.float32, the pages bfloat16"):
        gather_pages(pool, PAGE_IDS, halves, host(halves))
    with pytest.raises(LayoutError, match="2 tokens do not fit a pool of 4-token pages"):
        gather_pages(pool, PAGE_IDS, short, host(short))
    with pytest.raises(LayoutError, match="host pages are"):
        scatter_pages(host(layout, pages=2), layout, pool, PAGE_IDS)


def test_latent_pages_are_refused() -> None:
    shape = KVShape.mla(num_layers=2, latent_dim=8, dtype="float32", page_tokens=4)
    layout = ShardLayout(shape, Grid(2, 0), Shard(range(2), range(0)))
    pool = KVPool.empty(num_layers=2, num_pages=1, page_tokens=4, heads=1, head_dim=8, dtype=torch.float32)

    with pytest.raises(LayoutError, match="MLA"):
        gather_pages(pool, torch.tensor([0]), layout, torch.zeros(1, layout.page_nbytes, dtype=torch.uint8))
