"""What a match promises: purity, partial hits, tiers, scopes."""

from __future__ import annotations

import pytest

from hicache_storage.engine_integration.radix import Key, RadixTree, Tier
from hicache_storage.errors import InvariantError
from hicache_storage.layout import request_seed
from tests.engine_integration.radix.pages import Bench, hashes, key, tokens


def shape_of(tree: RadixTree) -> list[tuple[object, ...]]:
    return [
        (
            node.id,
            node.ids,
            node.device.pages,
            node.host.pages,
            node.uses,
            node.last_used,
            node.stored,
            node.tiers[0].locks,
        )
        for node in tree.books.nodes()
    ]


def test_an_empty_tree_matches_nothing() -> None:
    tree = RadixTree(4)

    found = tree.match_and_split(key("AB"), 1)

    assert (found.num_pages, found.last_node, found.device_node) == (0, tree.root, tree.root)


def test_a_match_gives_the_pages_in_order() -> None:
    bench = Bench()
    bench.insert("AB")
    bench.insert("ABCD")

    found = bench.tree.match(key("ABCDE"))

    assert found.device_pages().tolist() == [0, 1, 2, 3]
    assert found.num_device == 4


def test_match_changes_nothing_where_it_ends_inside_a_node() -> None:
    bench = Bench()
    bench.insert("ABCD")
    before = shape_of(bench.tree)

    found = bench.tree.match(key("ABX"))

    assert found.device_pages().tolist() == [0, 1]
    assert shape_of(bench.tree) == before


def test_match_and_match_and_split_find_the_same() -> None:
    bench = Bench()
    bench.back_up(bench.insert("ABCD").node)
    bench.evict(Tier.DEVICE, 4)

    pure = bench.tree.match(key("ABX"))
    splitting = bench.tree.match_and_split(key("ABX"), bench.tick())

    assert (pure.num_device, pure.num_host, pure.num_stored) == (0, 2, 0)
    assert pure.host_pages() == splitting.host_pages()
    assert splitting.last_node.num_pages == 2


def test_a_partial_hit_counts_as_a_use() -> None:
    """The prefix that was just hit in part outlives one that was not, although it was inserted earlier."""
    bench = Bench()
    bench.insert("ABCD")
    bench.insert("WXYZ")

    bench.use("ABQ")
    bench.evict(Tier.DEVICE, 6)

    assert bench.spell() == {"AB"}


def test_a_partial_hit_is_no_use_of_what_did_not_match() -> None:
    bench = Bench()
    bench.insert("ABCD")

    upper = bench.use("AB")
    (lower,) = upper.children.values()

    assert (upper.uses, lower.uses) == (2, 1)
    assert (upper.last_used, lower.last_used) == (2, 1)


def test_a_match_states_each_tier() -> None:
    bench = Bench()
    bench.back_up(bench.insert("AB").node)
    bench.back_up(bench.insert("ABCD").node)
    bench.evict(Tier.DEVICE, 2)

    found = bench.tree.match(key("ABCDE"))

    assert (found.num_device, found.num_host) == (2, 2)
    assert found.device_pages().tolist() == [0, 1]
    assert found.host_pages().tolist() == [100_002, 100_003]
    assert found.device_node is found.last_node.parent


def test_scopes_share_nothing() -> None:
    bench = Bench()
    seeds = [request_seed(lora_id=lora, cache_salt=salt) for lora in (None, "1", "2") for salt in (None, "a", "b")]
    for seed in seeds:
        bench.insert("ABC", seed=seed)

    ids = [tuple(bench.tree.match(key("ABC", seed)).device_pages()) for seed in seeds]
    names = {name for seed in seeds for name in bench.tree.page_hashes(bench.tree.match(key("ABC", seed)).last_node)}

    assert len(set(ids)) == 9
    assert len(names) == 27


def test_page_hashes_are_those_of_the_layout_also_after_splits() -> None:
    bench = Bench()
    seed = request_seed(cache_salt="salt")
    for letters in ("ABCDEF", "ABCX", "AY"):
        bench.insert(letters, seed=seed)
        node = bench.tree.match(key(letters, seed)).last_node
        assert bench.tree.page_hashes(node) == hashes(letters, seed)
    bench.check()

    assert bench.tree.page_hashes(bench.tree.match(key("ABCDEF", seed)).last_node) == hashes("ABCDEF", seed)


def test_hashes_are_computed_when_they_are_asked_for() -> None:
    bench = Bench()
    upper = bench.insert("AB").node
    lower = bench.insert("ABCD").node

    assert (upper.hashes, lower.hashes) == (None, None)
    assert lower.page_hashes() == hashes("ABCD")[2:]
    assert upper.hashes == hashes("AB")


def test_a_key_of_another_page_size_is_refused() -> None:
    with pytest.raises(InvariantError, match="8-token pages in a tree of 4-token pages"):
        RadixTree(4).match(Key.of(tokens("AB"), 8))


def test_the_counter_of_uses_never_runs_backwards() -> None:
    tree = RadixTree(4)
    tree.match_and_split(key("A"), 5)

    with pytest.raises(InvariantError, match="from 5 to 4"):
        tree.match_and_split(key("A"), 4)


def test_what_a_match_returned_stays_right_when_the_tree_changes() -> None:
    bench = Bench()
    bench.insert("ABCD")
    found = bench.tree.match(key("ABCD"))

    bench.insert("ABX")
    bench.evict(Tier.DEVICE, 100)

    assert found.device_pages().tolist() == [0, 1, 2, 3]
