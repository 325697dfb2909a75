"""What goes first, what stays, and what eviction answers when it cannot do what was asked."""

from __future__ import annotations

import random

import pytest

from hicache_storage.engine_integration.options import EvictionPolicy
from hicache_storage.engine_integration.radix import Node, RadixTree, Tier
from hicache_storage.errors import ConfigError
from tests.engine_integration.radix.pages import PAGE_TOKENS, Bench, key


def bench_of(policy: EvictionPolicy) -> Bench:
    return Bench(RadixTree(PAGE_TOKENS, eviction=policy, host_eviction=policy))


def test_eviction_of_more_than_there_is_frees_what_there_is() -> None:
    """Being short is no error: the caller compares."""
    bench = Bench()
    bench.insert("AB")

    assert bench.evict(Tier.DEVICE, 5).device_pages.tolist() == [0, 1]
    assert bench.evict(Tier.DEVICE, 5).device_pages.tolist() == []
    assert bench.evict(Tier.HOST, 5).host_pages.tolist() == []


@pytest.mark.parametrize("wanted", [0, -3])
def test_nothing_goes_where_nothing_is_wanted(wanted: int) -> None:
    bench = Bench()
    bench.insert("AB")

    assert bench.evict(Tier.DEVICE, wanted).device_pages.tolist() == []


def test_no_more_pages_go_than_are_wanted_and_they_go_from_the_end() -> None:
    bench = Bench()
    bench.insert("ABCDEF")

    assert bench.evict(Tier.DEVICE, 2).device_pages.tolist() == [4, 5]
    assert bench.spell() == {"ABCD"}


def test_lru_gives_up_what_was_unused_for_longest() -> None:
    bench = bench_of("lru")
    for letters in ("AA", "BB", "CC"):
        bench.insert(letters)
    bench.use("AA")

    bench.evict(Tier.DEVICE, 2)

    assert bench.spell() == {"AA", "CC"}


def test_lfu_gives_up_what_was_used_least() -> None:
    bench = bench_of("lfu")
    for letters in ("AA", "BB"):
        bench.insert(letters)
    for letters in ("AA", "AA", "BB"):
        bench.use(letters)

    bench.evict(Tier.DEVICE, 2)

    assert bench.spell() == {"AA"}


def test_slru_keeps_what_was_used_again_from_a_scan() -> None:
    bench = bench_of("slru")
    bench.insert("AA")
    bench.use("AA")
    for letters in ("BB", "CC", "DD"):
        bench.insert(letters)

    bench.evict(Tier.DEVICE, 6)

    assert bench.spell() == {"AA"}


@pytest.mark.parametrize("policy", ["lru", "lfu", "slru"])
def test_lower_priority_goes_first_under_every_policy(policy: EvictionPolicy) -> None:
    bench = bench_of(policy)
    bench.insert("AA", priority=1)
    bench.insert("BB", priority=0)
    bench.use("BB")

    bench.evict(Tier.DEVICE, 2)

    assert bench.spell() == {"AA"}


def test_an_unknown_policy_names_itself() -> None:
    with pytest.raises(ConfigError, match="'mru'"):
        RadixTree(4, eviction="mru")  # type: ignore[arg-type]


def lowest_leaf(bench: Bench, policy: EvictionPolicy, tier: Tier) -> Node:
    """Find the next victim by looking at every node."""
    leaves = [
        node
        for node in bench.tree.books.nodes()
        if node.tiers[tier].pages is not None
        and not any(child.tiers[tier].pages is not None for child in node.children.values())
    ]

    def rank(node: Node) -> tuple[int, ...]:
        order = {
            "lru": (node.last_used,),
            "lfu": (node.uses, node.last_used),
            "slru": (node.uses > 1, node.last_used),
        }[policy]
        return (tier is Tier.HOST and node.device.pages is not None, *order, node.id)

    return min(leaves, key=rank)


@pytest.mark.parametrize("tier", Tier)
@pytest.mark.parametrize("policy", ["lru", "lfu", "slru"])
def test_victims_are_those_that_a_search_of_all_nodes_finds(
    rng: random.Random, policy: EvictionPolicy, tier: Tier
) -> None:
    bench = bench_of(policy)
    for _ in range(60):
        node = bench.insert("".join(rng.choices("ABC", k=rng.randrange(1, 7)))).node
        if rng.random() < 0.7:
            bench.back_up(node)
        bench.use("".join(rng.choices("ABC", k=rng.randrange(1, 7))))
    bench.evict(Tier.DEVICE, 20)

    for _ in range(200):
        if not bench.tree.num_held(tier):
            break
        victim = lowest_leaf(bench, policy, tier)
        pages = victim.tiers[tier].pages
        assert pages is not None
        gone = bench.evict(tier, 1, copies=True)
        taken = gone.device_pages if tier is Tier.DEVICE else gone.host_pages
        assert taken[-1:] == pages[-1:]

    assert bench.tree.num_held(tier) == 0


def test_a_backed_up_node_stays_on_the_host() -> None:
    bench = Bench()
    bench.back_up(bench.insert("ABCD").node)

    gone = bench.evict(Tier.DEVICE, 4)

    assert (len(gone.device_pages), gone.lost_pages, bench.spell()) == (4, 0, {"ABCD*"})


def test_a_prompt_that_goes_piece_by_piece_is_two_nodes_at_any_time() -> None:
    bench = Bench()
    last = bench.insert("ABCDEFGH").node
    bench.back_up(last)

    for left in range(7, 0, -1):
        bench.evict(Tier.DEVICE, 1)
        assert bench.spell() == {"ABCDEFGH"[:left], "ABCDEFGH*"}
        assert bench.tree.match(key("ABCDEFGH")).last_node is last

    bench.evict(Tier.DEVICE, 1)
    assert bench.spell() == {"ABCDEFGH*"}


def test_a_node_without_a_host_copy_is_lost_where_that_is_allowed() -> None:
    bench = Bench()
    bench.insert("ABCD")

    assert bench.evict(Tier.DEVICE, 4).lost_pages == 4
    assert bench.spell() == set()


def test_losing_a_node_frees_the_host_pages_below_it() -> None:
    bench = Bench()
    bench.insert("AB")
    bench.tree.insert_host(key("ABCD"), bench.host.take(2), bench.tick(), first_page=2)

    gone = bench.evict(Tier.DEVICE, 2)

    assert len(gone.host_pages) == 2
    assert gone.lost_pages == 4


def test_a_node_is_not_lost_while_host_pages_below_it_are_locked() -> None:
    bench = Bench()
    bench.insert("AB")
    leaf = bench.tree.insert_host(key("ABCD"), bench.host.take(2), bench.tick(), first_page=2).node
    bench.tree.lock(leaf, Tier.HOST)

    assert len(bench.evict(Tier.DEVICE, 2).device_pages) == 0
    bench.tree.unlock(leaf, Tier.HOST)
    assert len(bench.evict(Tier.DEVICE, 2).device_pages) == 2


def test_write_back_names_what_must_be_copied_first_parents_before_children() -> None:
    bench = Bench()
    bench.insert("AB")
    bench.insert("ABCD")
    bench.insert("ABX")

    plan = bench.evict(Tier.DEVICE, 5, lose_unbacked=False)
    order = [node.label[-4:].decode()[0] for node in plan.write_back]

    assert len(plan.device_pages) == 0
    assert order[0] == "A"
    assert set(order[1:]) == {"C", "X"}


def test_after_the_write_back_the_same_call_frees_without_loss() -> None:
    bench = Bench()
    bench.insert("AB")
    bench.insert("ABCD")

    for node in bench.evict(Tier.DEVICE, 4, lose_unbacked=False).write_back:
        bench.tree.transfers.complete(bench.tree.transfers.begin_backup([node], bench.host.take(node.num_pages)))
    gone = bench.evict(Tier.DEVICE, 4, lose_unbacked=False)

    assert (len(gone.device_pages), gone.write_back, bench.spell()) == (4, (), {"ABCD*"})


def test_write_back_is_asked_for_no_more_than_is_wanted() -> None:
    bench = Bench()
    bench.insert("ABCDEF")

    (node,) = bench.evict(Tier.DEVICE, 2, lose_unbacked=False).write_back

    assert node.num_pages == 2
    assert bench.spell() == {"ABCD", "ABCDEF"}


def test_write_back_frees_backed_up_nodes_at_once() -> None:
    bench = Bench()
    bench.back_up(bench.insert("AA").node)
    bench.insert("BB")

    gone = bench.evict(Tier.DEVICE, 3, lose_unbacked=False)

    assert len(gone.device_pages) == 2
    assert [node.num_pages for node in gone.write_back] == [1]


def test_a_backed_up_parent_waits_for_its_child_that_is_not() -> None:
    bench = Bench()
    bench.back_up(bench.insert("AB").node)
    bench.insert("ABCD")

    gone = bench.evict(Tier.DEVICE, 4, lose_unbacked=False)

    assert len(gone.device_pages) == 0
    assert [node.first_page for node in gone.write_back] == [2]


def test_the_host_gives_up_copies_last_and_only_when_asked() -> None:
    bench = Bench()
    bench.back_up(bench.insert("AA").node)
    bench.back_up(bench.insert("BB").node)
    bench.evict(Tier.DEVICE, 2)
    bench.use("AA")

    assert bench.evict(Tier.HOST, 9).host_pages.tolist() == [100_000, 100_001]
    assert bench.tree.num_evictable(Tier.HOST) == 0
    assert bench.tree.num_evictable(Tier.HOST, copies=True) == 2
    assert bench.evict(Tier.HOST, 9, copies=True).host_pages.tolist() == [100_002, 100_003]
    assert bench.spell() == {"BB"}


def test_the_host_gives_up_children_before_parents() -> None:
    bench = Bench()
    bench.back_up(bench.insert("AB").node)
    bench.back_up(bench.insert("ABCD").node)
    bench.evict(Tier.DEVICE, 4)

    bench.evict(Tier.HOST, 2)

    assert bench.spell() == {"AB*"}


def test_a_node_locked_when_it_left_the_device_keeps_its_turn_on_the_host() -> None:
    """Its entry among the host's leaves said that it was a copy, and copies go last."""
    bench = Bench()
    first = bench.insert("AA").node
    bench.back_up(first)
    bench.back_up(bench.insert("BB").node)
    bench.tree.lock(first, Tier.HOST)
    bench.evict(Tier.DEVICE, 4)
    bench.tree.unlock(first, Tier.HOST)

    bench.evict(Tier.HOST, 2)

    assert bench.spell() == {"BB*"}


def test_entries_of_leaves_do_not_pile_up() -> None:
    bench = Bench()
    node = bench.insert("AB").node
    bench.back_up(node)
    for _ in range(500):
        bench.tree.evict(Tier.DEVICE, 2)
        bench.tree.transfers.complete(bench.tree.transfers.begin_load([node], [0, 1]))

    assert all(len(leaves._heap) < 100 for leaves in bench.tree.books.leaves)
