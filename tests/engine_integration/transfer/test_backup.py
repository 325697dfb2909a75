"""Device pages arrive in host pages byte for byte, on every route."""

from __future__ import annotations

import pytest
import torch

from hicache_storage.engine_integration.tiers.host import HostPool
from hicache_storage.engine_integration.transfer import Backup, Load, Transfer, TransferOptions, backup
from hicache_storage.errors import ConfigError, HiCacheError, InvariantError, LayoutError
from hicache_storage.kernels import DevicePool, gather_pages
from tests.engine_integration.transfer.pools import (
    DEADLINE_S,
    POISON,
    expected_page,
    gate_before,
    host_for,
    random_pool,
)

DEVICE_PAGES = [7, 0, 3, 11, 4, 5]


def options(route: str, pool: DevicePool, group_heads: int) -> TransferOptions:
    """Return options whose staging holds two pages, so that six take three turns."""
    nbytes = pool.page_format(group_heads).page_nbytes
    return TransferOptions(route=route, staging_nbytes=2 * nbytes + 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("route", ["direct", "staged"])
@pytest.mark.parametrize(
    ("pool", "group_heads"),
    [
        pytest.param(random_pool(), 1, id="mha, single heads"),
        pytest.param(random_pool(), 2, id="mha, groups of two"),
        pytest.param(random_pool(), 4, id="mha, one group"),
        pytest.param(random_pool(k_dim=24, v_dim=16), 2, id="wider K than V"),
        pytest.param(random_pool(heads=0, k_dim=9), 0, id="mla, odd width"),
        pytest.param(random_pool().with_draft(random_pool(layers=2, seed=2)), 2, id="draft appended"),
        pytest.param(random_pool(layers=1, heads=1, k_dim=1, v_dim=1), 1, id="one of everything"),
    ],
)
def test_host_pages_are_the_device_pages(route: str, pool: DevicePool, group_heads: int) -> None:
    host = host_for(pool, group_heads)
    host_pages = [12, 3, 4, 5, 0, 13]
    host.slots.allocate(16)

    with Backup(pool, host, group_heads=group_heads, options=options(route, pool, group_heads)) as worker:
        transfer = worker.submit(DEVICE_PAGES, host_pages)
        assert transfer.wait(DEADLINE_S)

    assert transfer.error is None
    for device, page in zip(DEVICE_PAGES, host_pages, strict=True):
        assert bytes(host.page(page)) == expected_page(pool, device, group_heads)
    for page in set(range(16)) - set(host_pages):
        assert set(host.page(page)) == {POISON}


def test_on_a_cpu_pages_go_straight_to_the_host_pages() -> None:
    pool = random_pool()

    assert Backup(pool, host_for(pool, 2), group_heads=2).route == "direct"


def test_one_copy_per_run_of_host_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = random_pool()
    host = host_for(pool, 2)
    host.slots.allocate(16)
    copies: list[tuple[int, ...]] = []
    copy = torch.Tensor.copy_

    def counted(target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool = False) -> torch.Tensor:
        if target.untyped_storage().data_ptr() == host.rows.untyped_storage().data_ptr():
            copies.append(tuple(target.shape))
        return copy(target, source, non_blocking=non_blocking)

    monkeypatch.setattr(torch.Tensor, "copy_", counted)
    with Backup(pool, host, group_heads=2, options=TransferOptions(route="staged")) as worker:
        worker.submit(DEVICE_PAGES, [9, 8, 2, 7, 1, 3]).wait(DEADLINE_S)

    assert [shape[0] for shape in copies] == [3, 3]


def test_no_pages_are_a_transfer_too() -> None:
    pool = random_pool()

    with Backup(pool, host_for(pool, 2), group_heads=2) as worker:
        transfer = worker.submit([], [])
        assert transfer.wait(DEADLINE_S)

    assert (transfer.error, worker.completed) == (None, 1)


def test_tensors_of_inference_mode_are_moved() -> None:
    with torch.inference_mode():
        pool = random_pool()
        host = host_for(pool, 2)
    host.slots.allocate(16)

    with Backup(pool, host, group_heads=2, options=TransferOptions(route="staged")) as worker:
        transfer = worker.submit([1], [1])

    assert transfer.error is None


def test_pools_with_other_pages_are_refused() -> None:
    pool = random_pool()

    with pytest.raises(LayoutError, match=r"host pages have \d+ bytes, the pool's pages \d+"):
        Backup(pool, host_for(random_pool(layers=4), 2), group_heads=2)


@pytest.mark.parametrize("worker", [Backup, Load])
@pytest.mark.parametrize("wish", [{"route": "pigeon"}, {"impl": "pigeon"}, {"impl": "pigeon", "route": "staged"}])
def test_a_wish_that_cannot_be_met_is_refused(worker: type[Backup | Load], wish: dict[str, str]) -> None:
    pool = random_pool()

    with pytest.raises(ConfigError, match="pigeon"):
        worker(pool, host_for(pool, 2), group_heads=2, options=TransferOptions(**wish))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device_pages", "host_pages"),
    [
        pytest.param([0, 1], [0], id="unequal numbers"),
        pytest.param([12], [0], id="no such device page"),
        pytest.param([-1], [0], id="negative device page"),
        pytest.param([0], [16], id="no such host page"),
        pytest.param([0], [9], id="host page not held"),
        pytest.param([0, 1], [2, 2], id="host page named twice"),
    ],
)
def test_pages_that_do_not_fit_are_refused_and_nothing_is_pinned(
    device_pages: list[int], host_pages: list[int]
) -> None:
    pool = random_pool()
    host = host_for(pool, 2)
    host.slots.allocate(8)

    with Backup(pool, host, group_heads=2) as worker, pytest.raises(InvariantError):
        worker.submit(device_pages, host_pages)

    assert (host.slots.num_pinned, worker.completed, worker.failed) == (0, 0, 0)


def submit_two(worker: Backup, host: HostPool) -> tuple[Transfer, Transfer]:
    host.slots.allocate(16)
    return worker.submit([0], [0]), worker.submit([1], [1])


def test_a_failing_transfer_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = random_pool()
    host = host_for(pool, 2)
    faults = iter([RuntimeError("planted")])

    def failing_once(*args: object, **kwargs: object) -> None:
        for fault in faults:
            raise fault
        gather_pages(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(backup, "gather_pages", failing_once)
    with Backup(pool, host, group_heads=2) as worker:
        bad, good = submit_two(worker, host)

    assert str(bad.error) == "planted"
    assert good.error is None
    assert bytes(host.page(1)) == expected_page(pool, 1, 2)
    assert (worker.completed, worker.failed, host.slots.num_pinned) == (1, 1, 0)


def test_closing_waits_for_every_transfer() -> None:
    pool = random_pool()
    host = host_for(pool, 2)

    worker = Backup(pool, host, group_heads=2)
    first, second = submit_two(worker, host)
    worker.close()
    worker.close()

    assert first.done()
    assert second.done()
    assert worker.completed == 2


def test_aborting_ends_what_has_not_begun() -> None:
    pool = random_pool()
    host = host_for(pool, 2)

    with gate_before(backup, "gather_pages") as gate:
        worker = Backup(pool, host, group_heads=2)
        first, second = submit_two(worker, host)
        gate.wait_until_reached()
        worker._aborting = True
        gate.let_go()
        worker.close(abort=True)

    assert first.error is None
    assert isinstance(second.error, HiCacheError)
    assert host.slots.num_pinned == 0


def test_a_closed_worker_takes_nothing_and_pins_nothing() -> None:
    pool = random_pool()
    host = host_for(pool, 2)
    host.slots.allocate(16)
    worker = Backup(pool, host, group_heads=2)
    worker.close()

    with pytest.raises(InvariantError, match="closed"):
        worker.submit([0], [0])

    assert host.slots.num_pinned == 0
