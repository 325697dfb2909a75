"""Locks keep a path, are counted exactly, and end exactly once."""

from __future__ import annotations

import pytest

from hicache_storage.engine_integration.radix import Tier
from hicache_storage.errors import InvariantError
from tests.engine_integration.radix.pages import Bench


@pytest.mark.parametrize("tier", Tier)
def test_a_lock_keeps_the_whole_path(tier: Tier) -> None:
    bench = Bench()
    bench.back_up(bench.insert("AB").node)
    leaf = bench.insert("ABCD").node
    bench.back_up(leaf)
    bench.insert("ABX")
    if tier is Tier.HOST:
        bench.evict(Tier.DEVICE, 100)

    bench.tree.lock(leaf, tier)
    bench.evict(tier, 100)

    assert {name.rstrip("*") for name in bench.spell()} >= {"AB", "ABCD"}
    assert bench.tree.num_evictable(tier) == 0


def test_what_is_unlocked_can_be_evicted_again() -> None:
    bench = Bench()
    leaf = bench.insert("ABCD").node
    bench.tree.lock(leaf, Tier.DEVICE)
    bench.evict(Tier.DEVICE, 100)
    bench.tree.unlock(leaf, Tier.DEVICE)

    bench.evict(Tier.DEVICE, 100)

    assert bench.spell() == set()


def test_a_lock_ends_after_as_many_unlocks() -> None:
    bench = Bench()
    leaf = bench.insert("AB").node
    bench.tree.lock(leaf, Tier.DEVICE)
    bench.tree.lock(leaf, Tier.DEVICE)
    bench.tree.unlock(leaf, Tier.DEVICE)

    assert len(bench.evict(Tier.DEVICE, 2).device_pages) == 0


@pytest.mark.parametrize("tier", Tier)
def test_unlocking_what_is_not_locked_raises_and_changes_nothing(tier: Tier) -> None:
    bench = Bench()
    upper = bench.insert("AB").node
    leaf = bench.insert("ABCD").node
    bench.tree.lock(leaf, tier)

    with pytest.raises(InvariantError, match="not locked"):
        bench.tree.unlock(upper, tier)

    bench.check()
    assert upper.tiers[tier].locks == 1


def test_tiers_are_locked_apart() -> None:
    bench = Bench()
    leaf = bench.insert("AB").node
    bench.tree.lock(leaf, Tier.HOST)

    with pytest.raises(InvariantError, match="not locked in DEVICE"):
        bench.tree.unlock(leaf, Tier.DEVICE)


def test_a_split_divides_a_locked_node_and_keeps_the_lock() -> None:
    bench = Bench()
    leaf = bench.insert("ABCD").node
    bench.tree.lock(leaf, Tier.DEVICE)

    bench.insert("ABX")
    bench.insert("AY")
    bench.evict(Tier.DEVICE, 100)
    survivors = bench.spell()
    bench.tree.unlock(leaf, Tier.DEVICE)
    bench.check()

    assert survivors == {"A", "AB", "ABCD"}
    assert bench.tree.books.locked == [0, 0]


def test_the_root_can_be_locked_by_a_request_that_matched_nothing() -> None:
    bench = Bench()
    bench.tree.lock(bench.tree.root, Tier.DEVICE)
    bench.insert("AB")

    bench.evict(Tier.DEVICE, 2)
    bench.tree.unlock(bench.tree.root, Tier.DEVICE)

    assert bench.spell() == set()


def test_a_node_that_has_left_the_tree_cannot_be_locked() -> None:
    bench = Bench()
    leaf = bench.insert("AB").node
    bench.evict(Tier.DEVICE, 2)

    with pytest.raises(InvariantError, match="removed"):
        bench.tree.lock(leaf, Tier.DEVICE)


def test_reset_returns_every_page_once() -> None:
    bench = Bench()
    bench.back_up(bench.insert("ABCD").node)
    bench.insert("ABX")
    bench.evict(Tier.DEVICE, 1)

    gone = bench.tree.reset()
    bench.device.free(gone.device_pages)
    bench.host.free(gone.host_pages)
    bench.check()

    assert (bench.device.held, bench.host.held, bench.tree.books.num_nodes) == (set(), set(), 0)


def test_reset_is_refused_while_anything_is_locked() -> None:
    bench = Bench()
    bench.tree.lock(bench.insert("AB").node, Tier.DEVICE)

    with pytest.raises(InvariantError, match="cannot reset"):
        bench.tree.reset()

    assert bench.spell() == {"AB"}


def test_a_node_on_the_host_alone_cannot_be_locked_on_the_device() -> None:
    bench = Bench()
    leaf = bench.insert("AB").node
    bench.back_up(leaf)
    bench.evict(Tier.DEVICE, 2)

    with pytest.raises(InvariantError, match="not on the device"):
        bench.tree.lock(leaf, Tier.DEVICE)


def test_a_host_lock_keeps_a_prefix_that_is_on_the_device_alone() -> None:
    """A prefetch that will insert behind it must find it."""
    bench = Bench()
    leaf = bench.insert("AB").node
    bench.tree.lock(leaf, Tier.HOST)

    bench.evict(Tier.DEVICE, 2)

    assert bench.spell() == {"AB"}
