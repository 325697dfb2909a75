"""Side pools: drafts, index keys, windows and recurrent state travel with the prefix, under SGLang's hit policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, PoolHitPolicy, PoolName, PoolTransfer

from hicache_storage.engine_integration.adapters.sglang.hits import SideHits, restorable
from tests.engines.sglang.adapter.deployment import LATENT, Rank, hashes_of, rank, ranks, storage_config
from tests.engines.sglang.adapter.host_pools import Shape, host_pool, page_rows, put_page, slots_of

PAGES = 6
SIDE = Shape(layers=2, heads=2, head_dim=32, page_tokens=16)


T = TypeVar("T")


class StatePool:
    """A pool with one page a slot and two tensors a page, as that of recurrent state is."""

    layout = "page_first"
    page_size = 1
    dtype = torch.float32
    kv_buffer = None

    def __init__(self, slots: int = 12, width: int = 100) -> None:
        self.state = torch.zeros(slots, width)
        self.window = torch.zeros(slots, 3, dtype=torch.bfloat16)

    def get_data_page(self, index: int, flat: bool = True) -> torch.Tensor:
        return torch.cat([part[index].contiguous().view(torch.uint8).view(-1) for part in (self.state, self.window)])

    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None:
        split = self.state[0].nbytes
        self.state[index] = data_page[:split].view(torch.float32)
        self.window[index] = data_page[split:].clone().view(torch.bfloat16)


def side_rows(page: int) -> np.ndarray:
    return np.random.default_rng(500 + page).integers(0, 1 << 16, (2, 2, 16, 2, 32), np.uint16)


def transfer(name: str, pool: Any, hashes: list[str], pages: list[int], **options: object) -> PoolTransfer:
    return PoolTransfer(name=PoolName(name), host_indices=slots_of(pool, pages), keys=hashes, **options)


def with_pool(one: Rank, name: str, pool: T) -> T:
    one.storage.register_mem_host_pool_v2(pool, PoolName(name))  # type: ignore[arg-type] # a pool, as tests know it
    return pool


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
@pytest.mark.parametrize("name", ["draft", "swa", "draft_swa"])
def test_pool_of_k_and_v_travels_whole(name: str, layout: str, tmp_path: Path) -> None:
    hashes = hashes_of(PAGES)
    with ranks("tp1", layout, tmp_path) as (one,):
        pool = with_pool(one, name, host_pool(SIDE, layout))
        for page in range(PAGES):
            put_page(pool, page, side_rows(page))
        done = one.storage.batch_set_v2([transfer(name, pool, hashes, list(range(PAGES)))])
        assert done == {name: [True] * PAGES}

    with ranks("tp1", "page_head", tmp_path) as (two,):
        pool = with_pool(two, name, host_pool(SIDE, "page_head"))
        places = [11 - page for page in range(PAGES)]
        assert two.storage.batch_get_v2([transfer(name, pool, hashes, places)]) == {name: [True] * PAGES}
        assert all((page_rows(pool, at, side_rows(0)) == side_rows(page)).all() for page, at in enumerate(places))


def test_recurrent_state_travels_whole(tmp_path: Path) -> None:
    hashes = hashes_of(PAGES)
    with ranks("tp1", "page_first", tmp_path) as (one,):
        pool = with_pool(one, "mamba", StatePool())
        pool.state.copy_(torch.rand(12, 100))
        pool.window.copy_(torch.rand(12, 3))
        before = (pool.state.clone(), pool.window.clone())
        assert one.storage.batch_set_v2([transfer("mamba", pool, hashes, list(range(PAGES)))]) == {
            "mamba": [True] * PAGES
        }
        pool.state.zero_()
        pool.window.zero_()

        read = one.storage.batch_get_v2([transfer("mamba", pool, hashes, list(range(PAGES)))])

        assert read == {"mamba": [True] * PAGES}
        assert torch.equal(pool.state[:PAGES], before[0][:PAGES])
        assert torch.equal(pool.window[:PAGES], before[1][:PAGES])


def test_recurrent_state_of_ranks_is_kept_apart(tmp_path: Path) -> None:
    with ranks("tp2", "page_first", tmp_path, LATENT) as both:
        pools = [with_pool(one, "mamba", StatePool()) for one in both]
        for place, (one, pool) in enumerate(zip(both, pools, strict=True)):
            pool.state.fill_(place + 1)
            one.storage.batch_set_v2([transfer("mamba", pool, hashes_of(1), [0])])
        for place, (one, pool) in enumerate(zip(both, pools, strict=True)):
            pool.state.zero_()
            assert one.storage.batch_get_v2([transfer("mamba", pool, hashes_of(1), [0])]) == {"mamba": [True]}
            assert (pool.state[0] == place + 1).all()


def test_index_keys_beside_latent_rows_are_shared_by_all_ranks(tmp_path: Path) -> None:
    with ranks("tp2", "page_first", tmp_path, LATENT) as both:
        pools = [with_pool(one, "indexer", StatePool()) for one in both]
        pools[0].state.fill_(7)
        both[0].storage.batch_set_v2([transfer("indexer", pools[0], hashes_of(1), [0])])

        assert both[1].storage.batch_get_v2([transfer("indexer", pools[1], hashes_of(1), [0])]) == {"indexer": [True]}
        assert (pools[1].state[0] == 7).all()


def test_state_of_another_size_is_never_read(tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path) as (one,):
        pool = with_pool(one, "mamba", StatePool(width=100))
        one.storage.batch_set_v2([transfer("mamba", pool, hashes_of(1), [0])])

    with ranks("tp1", "page_first", tmp_path) as (two,):
        pool = with_pool(two, "mamba", StatePool(width=101))
        assert two.storage.batch_get_v2([transfer("mamba", pool, hashes_of(1), [0])]) == {"mamba": [False]}


PATTERNS = [
    (6, [1, 1, 1, 1, 1, 1]),
    (6, [1, 1, 0, 1, 1, 1]),
    (4, [1, 1, 1, 1, 1, 1]),
    (6, [0, 0, 0, 1, 1, 0]),
    (0, [1, 1, 1, 1, 1, 1]),
    (6, [0, 0, 0, 0, 0, 0]),
    (5, [0, 1, 1, 0, 1, 1]),
]


@pytest.mark.parametrize(("kv", "present"), PATTERNS)
def test_hits_are_those_of_sglangs_own_file_backend(kv: int, present: list[int], tmp_path: Path) -> None:
    hashes = hashes_of(PAGES)
    file = HiCacheFile(storage_config(file_storage_path=str(tmp_path / "file")), str(tmp_path / "file"))
    with ranks("tp1", "page_first", tmp_path / "ours") as (one,):
        pool = with_pool(one, "mamba", StatePool())
        one.fill(PAGES)
        if kv:
            one.write(hashes[:kv])
        for page, there in enumerate(present):
            if there:
                one.storage.batch_set_v2([transfer("mamba", pool, [hashes[page]], [page])])
                file.set(f"{hashes[page]}.mamba", torch.zeros(4))
        for page in range(kv):
            file.set(hashes[page], torch.zeros(4))

        for window in (1, 2, 3):
            for policy in (PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES):
                asked = [PoolTransfer(name=PoolName.MAMBA, keys=hashes[:window], hit_policy=policy)]
                assert one.storage.batch_exists_v2(hashes, asked) == file.batch_exists_v2(hashes, asked)


def test_pool_that_was_never_registered_is_never_a_hit(tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path) as (one,):
        one.fill(2)
        one.write(hashes_of(2))
        asked = [PoolTransfer(name=PoolName.SWA, keys=hashes_of(1), hit_policy=PoolHitPolicy.TRAILING_PAGES)]

        result = one.storage.batch_exists_v2(hashes_of(2), asked)

        assert (result.kv_hit_pages, result.restorable_prefix_pages) == (0, [])
        assert one.storage.batch_get_v2(asked) == {"swa": [False]}


def test_one_pools_failure_is_none_of_the_others(tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path) as (one,):
        good = with_pool(one, "mamba", StatePool())
        bad = PoolTransfer(name=PoolName.SWA, keys=hashes_of(2), host_indices=None)

        done = one.storage.batch_set_v2([bad, transfer("mamba", good, hashes_of(2), [0, 1])])

        assert done == {"swa": [False, False], "mamba": [True, True]}


def test_block_groups_never_limit_a_prefix(tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path) as (one,):
        one.fill(2)
        one.write(hashes_of(2))
        asked = [PoolTransfer(name=PoolName.DEEPSEEK_V4_C4, keys=hashes_of(1), hit_policy=PoolHitPolicy.BLOCK_GROUPS)]

        result = one.storage.batch_exists_v2(hashes_of(2), asked)

        assert result.kv_hit_pages == 2
        assert PoolName.DEEPSEEK_V4_C4 not in result.extra_pool_hit_pages


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
def test_packed_draft_layers_travel_with_the_target(layout: str, tmp_path: Path) -> None:
    shape = Shape(layers=4, heads=4, head_dim=64, page_tokens=16, draft_layers=2)
    rows = [np.random.default_rng(page).integers(0, 1 << 16, (6, 2, 16, 4, 64), np.uint16) for page in range(3)]
    hashes = hashes_of(3)
    one = rank("tp1", (0, 0), layout, tmp_path, sizes=shape)
    for page in range(3):
        put_page(one.pool, page, rows[page])
    assert all(one.write(hashes))
    assert all(one.read(hashes))
    assert all((page_rows(one.pool, at, rows[0]) == rows[page]).all() for page, at in enumerate(one.places(3)))
    one.storage.close()

    plain = rank("tp1", (0, 0), "page_first", tmp_path)
    assert plain.storage.batch_exists(hashes) == 3
    assert all(plain.read(hashes))
    assert (page_rows(plain.pool, plain.places(3)[0], rows[0][:4]) == rows[0][:4]).all()
    plain.storage.close()


def test_page_without_its_draft_part_ends_the_prefix_in_draft_mode(tmp_path: Path) -> None:
    plain = rank("tp1", (0, 0), "page_first", tmp_path)
    plain.fill(3)
    assert all(plain.write(hashes_of(3)))
    plain.storage.close()

    shape = Shape(layers=4, heads=4, head_dim=64, page_tokens=16, draft_layers=1)
    drafting = rank("tp1", (0, 0), "page_first", tmp_path, sizes=shape)
    assert drafting.storage.batch_exists(hashes_of(3)) == 0
    assert not any(drafting.read(hashes_of(3)))
    drafting.storage.close()


def test_greatest_common_end_point_may_lie_before_every_pools_own() -> None:
    sides = [
        SideHits("swa", [False, True, True, True, False, True], 2),
        SideHits("mamba", [True, False, True, False, False, True], 1),
    ]

    points, longest = restorable(6, sides)

    assert (points, longest) == ([3], {"swa": 4, "mamba": 6})
