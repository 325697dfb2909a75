"""F12: host pages in a transfer are nobody else's until the last byte has moved."""

from __future__ import annotations

import threading

import pytest

from hicache_storage.engine_integration.tiers.host import HostPool
from hicache_storage.engine_integration.transfer import Backup, Load, Transfer, backup, load
from hicache_storage.errors import InvariantError, TierFull
from tests.engine_integration.transfer.pools import (
    DEADLINE_S,
    POISON,
    expected_page,
    filled_host,
    gate_before,
    host_for,
    random_pool,
    same_layer,
    zeroed,
)


def evict_all_but(host: HostPool, transfer: Transfer) -> None:
    """Fill the tier and evict what can be evicted; assert that the pages of *transfer* are not among it."""
    rest = host.slots.allocate(host.slots.num_free)
    with pytest.raises(InvariantError, match="pinned by a transfer"):
        host.slots.free(transfer.host_pages)
    host.slots.free(rest)
    with pytest.raises(TierFull, match="16 pages wanted, 13 of 16 are free"):
        host.slots.allocate(16)
    for page in host.slots.allocate(13):
        host.page(page)[:] = bytes([POISON ^ 0xFF]) * host.page_nbytes


def test_pages_of_a_running_backup_are_not_evicted_and_counted_only_when_full() -> None:
    pool = random_pool()
    host = host_for(pool, 2)
    host_pages = host.slots.allocate(3)

    with gate_before(backup, "gather_pages") as gate, Backup(pool, host, group_heads=2) as worker:
        transfer = worker.submit([5, 1, 9], host_pages)
        gate.wait_until_reached()

        evict_all_but(host, transfer)
        assert (worker.completed, transfer.done()) == (0, False)

        gate.let_go()
        assert transfer.wait(DEADLINE_S)

    assert worker.completed == 1
    assert [bytes(host.page(page)) for page in host_pages] == [expected_page(pool, page, 2) for page in (5, 1, 9)]
    host.slots.free(host_pages)
    host.slots.check()


def test_counter_and_books_are_right_when_the_backup_is_seen_to_be_done() -> None:
    pool = random_pool()
    host = host_for(pool, 2)
    seen: list[tuple[int, int, bytes]] = []

    class Watching(Transfer):
        def end(self, error: Exception | None) -> None:
            seen.append((worker.completed, host.slots.num_pinned, bytes(host.page(0))))
            super().end(error)

    host.slots.allocate(1)
    with pytest.MonkeyPatch.context() as patch, Backup(pool, host, group_heads=2) as worker:
        patch.setattr(backup, "Transfer", Watching)
        assert worker.submit([5], [0]).wait(DEADLINE_S)

    assert seen == [(1, 0, expected_page(pool, 5, 2))]


def test_pages_of_a_running_load_are_not_evicted_and_its_readers_wait_for_their_layer_alone() -> None:
    pool = random_pool()
    host = filled_host(pool, 2)
    host_pages = host.slots.allocate(3)
    target = zeroed(pool)
    pages = list(zip([4, 6, 5], host_pages, strict=True))

    with gate_before(load, "scatter_pages") as gate, Load(target, host, group_heads=2) as worker:
        transfer = worker.submit([4, 6, 5], host_pages)
        gate.wait_until_reached()
        evict_all_but(host, transfer)

        for layer in range(pool.num_layers):
            assert not transfer.layers.is_ready(layer)
            gate.let_go()
            transfer.layers.wait(layer, DEADLINE_S)
            assert same_layer(target, pool, layer, pages)
            assert (worker.completed, transfer.done()) == (0, False) or layer == pool.num_layers - 1

        assert transfer.wait(DEADLINE_S)

    assert worker.completed == 1
    host.slots.free(host_pages)
    host.slots.check()


def test_a_page_in_two_transfers_is_free_after_both() -> None:
    pool = random_pool()
    host = filled_host(pool, 2)
    host_pages = host.slots.allocate(1)
    target = zeroed(pool)

    with gate_before(load, "scatter_pages") as gate, Load(target, host, group_heads=2) as worker:
        first, second = worker.submit([4], host_pages), worker.submit([6], host_pages)
        gate.let_go(pool.num_layers)
        assert first.wait(DEADLINE_S)

        with pytest.raises(InvariantError, match="pinned"):
            host.slots.free(host_pages)

        gate.let_go(pool.num_layers)
        assert second.wait(DEADLINE_S)
    host.slots.free(host_pages)


def test_the_host_pool_stays_open_while_a_transfer_runs() -> None:
    pool = random_pool()
    host = host_for(pool, 2)
    host_pages = host.slots.allocate(1)

    with gate_before(backup, "gather_pages") as gate, Backup(pool, host, group_heads=2) as worker:
        worker.submit([0], host_pages)
        with pytest.raises(InvariantError, match="1 host pages are pinned"):
            host.close()
        gate.let_go()

    host.close()


def test_a_transfer_that_could_not_be_submitted_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = random_pool()
    host = host_for(pool, 2)
    first, second = host.slots.allocate(2)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Backup(pool, host, group_heads=2) as worker:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            with pytest.raises(RuntimeError, match="new thread"):
                worker.submit([5], [first])
        host.slots.free([first])
        assert worker.submit([1], [second]).wait(DEADLINE_S)

    assert (worker.completed, host.slots.num_pinned) == (1, 0)
    assert bytes(host.page(first)) == bytes([POISON]) * host.page_nbytes
    host.slots.free([second])
    host.slots.check()
