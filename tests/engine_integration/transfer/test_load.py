"""Host pages arrive in device pages byte for byte, layer by layer, on every route."""

from __future__ import annotations

import pytest
import torch

from hicache_storage.engine_integration.transfer import Load, TransferOptions, load
from hicache_storage.errors import ConfigError, HiCacheError
from hicache_storage.kernels import Choice, DevicePool, Impl, PageFormat, explain, scatter_pages
from tests.engine_integration.transfer.pools import (
    DEADLINE_S,
    filled_host,
    host_for,
    random_pool,
    same_layer,
    zeroed,
)

HOST_PAGES = [7, 0, 3, 10, 4, 5]
DEVICE_PAGES = [1, 2, 11, 0, 8, 9]


@pytest.mark.parametrize(
    ("route", "piece_nbytes"),
    [
        pytest.param("direct", 1, id="direct"),
        pytest.param("staged", 1, id="staged, a layer at a time"),
        pytest.param("staged", 300, id="staged, some layers at a time"),
        pytest.param("staged", 1 << 20, id="staged, whole pages"),
    ],
)
@pytest.mark.parametrize(
    ("pool", "group_heads"),
    [
        pytest.param(random_pool(layers=5), 1, id="mha, single heads"),
        pytest.param(random_pool(layers=5), 4, id="mha, one group"),
        pytest.param(random_pool(k_dim=24, v_dim=16), 2, id="wider K than V"),
        pytest.param(random_pool(layers=5, heads=0, k_dim=9), 0, id="mla, odd width"),
        pytest.param(random_pool().with_draft(random_pool(layers=2, seed=2)), 2, id="draft appended"),
    ],
)
def test_device_pages_are_the_host_pages(route: str, piece_nbytes: int, pool: DevicePool, group_heads: int) -> None:
    host = filled_host(pool, group_heads)
    host.slots.allocate(16)
    target = zeroed(pool)
    # Two whole pages a turn, and more of fewer layers.
    options = TransferOptions(
        route=route,  # type: ignore[arg-type]
        staging_nbytes=2 * host.page_nbytes,
        piece_nbytes=piece_nbytes,
    )

    with Load(target, host, group_heads=group_heads, options=options) as worker:
        transfer = worker.submit(DEVICE_PAGES, HOST_PAGES)
        for layer in range(pool.num_layers):
            transfer.layers.wait(layer, DEADLINE_S)
            assert same_layer(target, pool, layer, list(zip(DEVICE_PAGES, HOST_PAGES, strict=True)))

    untouched = [(page, page) for page in set(range(12)) - set(DEVICE_PAGES)]
    assert transfer.error is None
    assert all(same_layer(target, zeroed(pool), layer, untouched) for layer in range(pool.num_layers))


def test_on_a_cpu_pages_come_straight_from_the_host_pages() -> None:
    pool = random_pool()

    assert Load(pool, host_for(pool, 2), group_heads=2).route == "direct"


def test_a_failed_load_says_so_to_whoever_waits_for_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = random_pool()
    host = host_for(pool, 2)
    host.slots.allocate(16)

    def failing_at_layer_one(*args: object, layers: range, **kwargs: object) -> None:
        if layers.start == 1:
            raise RuntimeError("planted")
        scatter_pages(*args, layers=layers, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(load, "scatter_pages", failing_at_layer_one)
    with Load(pool, host, group_heads=2) as worker:
        transfer = worker.submit([0], [0])

        transfer.layers.wait(0, DEADLINE_S)
        with pytest.raises(HiCacheError, match="layer 1 was not loaded: planted"):
            transfer.layers.wait(1, DEADLINE_S)
    assert str(transfer.error) == "planted"
    assert (worker.completed, worker.failed, host.slots.num_pinned) == (0, 1, 0)


def test_an_aborted_load_says_so_to_whoever_waits_for_a_layer() -> None:
    pool = random_pool()
    host = host_for(pool, 2)
    host.slots.allocate(16)
    worker = Load(pool, host, group_heads=2)
    worker._aborting = True

    transfer = worker.submit([0], [0])
    worker.close()

    with pytest.raises(HiCacheError, match="aborted"):
        transfer.layers.wait(0, DEADLINE_S)


def test_device_pages_named_twice_are_that_transfers_error() -> None:
    pool = random_pool()
    host = host_for(pool, 2)
    host.slots.allocate(16)

    with Load(pool, host, group_heads=2) as worker:
        transfer = worker.submit([3, 3], [0, 1])

    assert "2 entries, only 1 of them different" in str(transfer.error)


def test_pages_the_kernel_cannot_read_are_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = random_pool()
    host = host_for(pool, 2)

    def refuse_host_pages(pool: DevicePool, pages: torch.Tensor, impl: Impl) -> Choice:
        if pages.data_ptr() == host.rows.data_ptr():
            raise ConfigError("the pages are not page-locked")
        return explain(pool, pages, impl)

    monkeypatch.setattr(load, "explain", refuse_host_pages)

    assert Load(pool, host, group_heads=2).route == "staged"


@pytest.mark.parametrize(
    ("piece_nbytes", "blocks"),
    [
        (1, [range(1), range(1, 2), range(2, 3), range(3, 4), range(4, 5)]),
        (129, [range(2), range(2, 4), range(4, 5)]),
        (640, [range(5)]),
        (1 << 20, [range(5)]),
    ],
)
def test_blocks_hold_at_least_a_piece_and_every_layer_once(piece_nbytes: int, blocks: list[range]) -> None:
    page_format = PageFormat(groups=2, layers=5, page_tokens=4, group_heads=1, k_head_nbytes=16, v_head_nbytes=16)

    assert page_format.cell_nbytes == 128
    assert list(load.plan_blocks(page_format, piece_nbytes)) == blocks
