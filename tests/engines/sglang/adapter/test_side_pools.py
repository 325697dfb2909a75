"""SGLang's own pools of recurrent state and of index keys, and model pools of unusual shapes, through the adapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost
from sglang.srt.mem_cache.pool_host.host_pool_decl import HostPoolDecl, HostPoolStorageInfo
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

from hicache_storage.backends.file import FileStore
from hicache_storage.types import Capabilities
from tests.engines.sglang.adapter.deployment import LATENT, hashes_of, rank, ranks
from tests.engines.sglang.adapter.host_pools import Shape, host_pool, slots_of

PAGES = 4


def mamba_pool(layout: str) -> MambaPoolHost:
    info = MambaStateBufferInfo(
        temporal=torch.zeros(3, 4, 2, 5, dtype=torch.float32), conv=(torch.zeros(3, 4, 7, dtype=torch.bfloat16),)
    )
    return MambaPoolHost(info, 3.0, 0, layout=layout, pin_memory=False, device_capacity=4)


def indexer_pool(layout: str) -> DSAIndexerPoolHost:
    anchor = host_pool(Shape(layers=4, heads=0, head_dim=144, page_tokens=16), layout)
    device = SimpleNamespace(
        store_dtype=torch.uint8,
        start_layer=0,
        end_layer=4,
        layer_num=4,
        layer_shard_enabled=False,
        device="cpu",
        page_size=16,
        index_k_with_scale_buffer=[torch.zeros(2, 16 * 33, dtype=torch.uint8) for _ in range(4)],
    )
    decl = HostPoolDecl(
        pool_name=PoolName.INDEXER,
        device_pool=device,
        indices_from_pool=PoolName.KV,
        layout_source=PoolName.KV,
        storage_info=HostPoolStorageInfo(bytes_per_token_per_layer=33, dtype=torch.uint8),
        host_pool_builder=None,
    )
    return DSAIndexerPoolHost(decl, anchor, pin_memory=False)


def buffers_of(pool: Any) -> list[torch.Tensor]:
    if isinstance(pool, DSAIndexerPoolHost):
        return [pool.index_k_with_scale_buffer]
    found = pool.kv_buffer
    return list(found) if isinstance(found, list | tuple) else [found]


def randomise(pool: Any, seed: int = 1) -> list[bytes]:
    """Fill the pool with random bytes; return its first pages as SGLang sees them."""
    for number, buffer in enumerate(buffers_of(pool)):
        flat = buffer.view(-1).view(torch.uint8)
        flat.copy_(torch.from_numpy(np.random.default_rng(seed + number).integers(0, 256, flat.numel(), np.uint8)))
    return pages_of(pool)


def pages_of(pool: Any) -> list[bytes]:
    pages = [pool.get_data_page(page * pool.page_size).contiguous() for page in range(PAGES)]
    return [page.view(torch.uint8).numpy().tobytes() for page in pages]


def wipe(pool: Any) -> None:
    for buffer in buffers_of(pool):
        buffer.view(-1).view(torch.uint8).fill_(0xA5)


CASES = [
    ("mamba", mamba_pool, "page_first", PoolHitPolicy.TRAILING_PAGES),
    ("mamba", mamba_pool, "page_first_direct", PoolHitPolicy.TRAILING_PAGES),
    ("indexer", indexer_pool, "layer_first", PoolHitPolicy.ALL_PAGES),
    ("indexer", indexer_pool, "page_first", PoolHitPolicy.ALL_PAGES),
    ("indexer", indexer_pool, "page_first_direct", PoolHitPolicy.ALL_PAGES),
]


@pytest.mark.parametrize(("name", "made", "layout", "policy"), CASES)
def test_sglangs_own_side_pool_travels_whole(
    name: str, made: Any, layout: str, policy: PoolHitPolicy, tmp_path: Path
) -> None:
    hashes = hashes_of(PAGES)
    with ranks("tp1", layout, tmp_path, LATENT) as (one,):
        pool = made(layout)
        before = randomise(pool)
        one.storage.register_mem_host_pool_v2(pool, PoolName(name))
        moved = PoolTransfer(
            name=PoolName(name), keys=hashes, host_indices=slots_of(pool, list(range(PAGES))), hit_policy=policy
        )
        assert one.storage.batch_set_v2([moved]) == {name: [True] * PAGES}
        wipe(pool)

        assert one.storage.batch_get_v2([moved]) == {name: [True] * PAGES}

        assert pages_of(pool) == before


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct"])
def test_rows_of_unequal_widths_travel_whole(layout: str, tmp_path: Path) -> None:
    shape = Shape(layers=4, heads=4, head_dim=64, v_head_dim=32, page_tokens=16)
    one = rank("tp1", (0, 0), layout, tmp_path, sizes=shape)
    rows = logical_rows(one.pool, fill=True)
    assert all(one.write(hashes_of(PAGES)))
    one.storage.close()

    for other in ("page_first", "page_first_direct"):
        two = rank("tp1", (0, 0), other, tmp_path, sizes=shape)
        wipe(two.pool)
        assert two.storage.batch_get_v1(hashes_of(PAGES), slots_of(two.pool, list(range(PAGES)))) == [True] * PAGES
        assert all((one == two).all() for one, two in zip(rows, logical_rows(two.pool), strict=True))
        two.storage.close()


def logical_rows(pool: Any, *, fill: bool = False) -> list[Any]:
    """Return K and V of the first pages as ``[page, layer, token, head, dim]``, whatever the layout."""
    if fill:
        randomise_tuple(pool)
    found = []
    for buffer in pool.kv_buffer:
        rows = buffer.view(torch.uint16)
        if pool.layout == "page_first":
            rows = rows.unflatten(0, (-1, pool.page_size)).transpose(1, 2)
        found.append(rows[:PAGES].contiguous().numpy())
    return found


def randomise_tuple(pool: Any) -> None:
    for number, buffer in enumerate(pool.kv_buffer):
        flat = buffer.view(-1).view(torch.uint8)
        flat.copy_(torch.from_numpy(np.random.default_rng(number).integers(0, 256, flat.numel(), np.uint8)))


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
def test_rows_of_one_byte_travel_whole(layout: str, tmp_path: Path) -> None:
    shape = Shape(layers=4, heads=4, head_dim=64, page_tokens=16, dtype=torch.uint8)
    one = rank("tp1", (0, 0), layout, tmp_path, sizes=shape, kv_dtype="fp8_e4m3")
    before = randomise(one.pool)
    slots = slots_of(one.pool, list(range(PAGES)))
    assert one.storage.batch_set_v1(hashes_of(PAGES), slots) == [True] * PAGES
    wipe(one.pool)

    assert one.storage.batch_get_v1(hashes_of(PAGES), slots) == [True] * PAGES

    assert pages_of(one.pool) == before
    other = rank("tp1", (0, 0), layout, tmp_path, sizes=shape, kv_dtype="fp8_e5m2")
    assert other.storage.batch_exists(hashes_of(PAGES)) == 0
    for made in (one, other):
        made.storage.close()


def test_unknown_pool_is_kept_as_it_is_under_rank_suffix(tmp_path: Path) -> None:
    class Unknown(MHATokenToKVPoolHost):  # type: ignore[misc] # SGLang has no types
        pass

    with mock.patch("tests.engines.sglang.adapter.host_pools.MHATokenToKVPoolHost", Unknown):
        one = rank("tp1", (0, 0), "page_first", tmp_path, key_scheme="rank-suffix")
    before = randomise(one.pool)
    slots = slots_of(one.pool, list(range(PAGES)))
    assert one.storage.batch_set_v1(hashes_of(PAGES), slots) == [True] * PAGES
    assert one.storage.batch_exists(hashes_of(PAGES)) == PAGES
    wipe(one.pool)

    assert one.storage.batch_get_v1(hashes_of(PAGES), slots) == [True] * PAGES

    assert pages_of(one.pool) == before
    one.storage.close()


@pytest.fixture
def announced() -> Iterator[list[tuple[str, int]]]:
    """What a store that wants to know its callers' memory was told."""
    told: list[tuple[str, int]] = []

    def register(_: FileStore, buffer: memoryview) -> None:
        told.append(("register", buffer.nbytes))

    def unregister(_: FileStore, buffer: memoryview) -> None:
        told.append(("unregister", buffer.nbytes))

    with (
        mock.patch.object(FileStore, "capabilities", Capabilities(memory_registration=True)),
        mock.patch.object(FileStore, "register_memory", register),
        mock.patch.object(FileStore, "unregister_memory", unregister),
    ):
        yield told


def test_pool_that_bytes_go_straight_to_is_announced_to_the_store(
    announced: list[tuple[str, int]], tmp_path: Path
) -> None:
    with ranks("tp1", "page_unified", tmp_path) as (one,):
        nbytes = one.pool.kv_buffer.nbytes

    assert announced == [("register", nbytes), ("unregister", nbytes)]


def test_memory_in_which_pages_are_arranged_is_announced_to_the_store(
    announced: list[tuple[str, int]], tmp_path: Path
) -> None:
    with ranks("tp1", "page_first", tmp_path, scratch_nbytes=1) as (one,):
        page_nbytes = one.storage._kv.page_nbytes

    assert announced == [("register", page_nbytes)] * 4 + [("unregister", page_nbytes)] * 4


def test_engine_without_the_zero_copy_interface_is_told(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path, interface_v1=0):
        pass

    assert "interface_v1 is not set" in caplog.text
