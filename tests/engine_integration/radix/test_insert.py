"""Every page has one owner: what the tree takes, and what stays the caller's."""

from __future__ import annotations

import pytest

from hicache_storage.engine_integration.radix import Key, RadixTree, Tier
from hicache_storage.errors import InvariantError
from tests.engine_integration.radix.pages import Bench, key


def test_pages_computed_twice_stay_the_callers() -> None:
    """Two requests computed ABC at the same time; the second brings pages of its own."""
    bench = Bench()
    bench.insert("ABC")

    done = bench.tree.insert(key("ABCD"), [50, 51, 52, 53], 2)

    assert done.unused.tolist() == [50, 51, 52]
    assert done.num_new == 1
    assert bench.tree.match(key("ABCD")).device_pages().tolist() == [0, 1, 2, 53]


def test_pages_that_a_match_has_lent_are_nobodys_to_free() -> None:
    bench = Bench()
    bench.insert("AB")

    done = bench.tree.insert(key("ABCD"), [0, 1, 52, 53], 2)

    assert (done.unused.tolist(), done.num_new) == ([], 4)


def test_matched_pages_may_be_left_out() -> None:
    bench = Bench()
    bench.insert("AB")

    done = bench.tree.insert(key("ABCD"), [52, 53], 2, first_page=2)

    assert done.unused.tolist() == []
    assert bench.tree.match(key("ABCD")).device_pages().tolist() == [0, 1, 52, 53]


def test_left_out_pages_may_end_inside_a_node() -> None:
    bench = Bench()
    bench.insert("ABCD")

    done = bench.tree.insert(key("ABCDE"), [60, 61, 62], 2, first_page=2)

    assert done.unused.tolist() == [60, 61]


def test_inserting_the_same_again_takes_nothing() -> None:
    bench = Bench()
    bench.insert("ABCD")

    done = bench.tree.insert(key("ABCD"), [60, 61, 62, 63], 2)

    assert done.unused.tolist() == [60, 61, 62, 63]
    assert bench.tree.books.num_nodes == 1


def test_a_branch_splits_the_node_that_it_leaves() -> None:
    bench = Bench()
    bench.insert("ABCD")

    done = bench.insert("ABX")

    assert bench.spell() == {"AB", "ABCD", "ABX"}
    assert done.node.first_page == 2


def test_the_node_of_an_insertion_ends_where_the_key_ends() -> None:
    bench = Bench()
    bench.insert("ABCD")

    assert bench.insert("ABC").node.num_pages == 3
    assert bench.insert("").node is bench.tree.root


def test_a_part_that_was_on_the_host_is_on_the_device_again() -> None:
    bench = Bench()
    bench.back_up(bench.insert("ABCD").node)
    bench.evict(Tier.DEVICE, 4)

    bench.insert("ABX")

    assert bench.spell() == {"AB", "ABX", "ABCD*"}
    assert bench.tree.match(key("AB")).last_node.host.pages is not None


def test_pages_behind_a_gap_are_refused() -> None:
    bench = Bench()
    bench.insert("AB")

    with pytest.raises(InvariantError, match="in front of 3 are not on the device"):
        bench.tree.insert(key("ABCD"), [60], 2, first_page=3)


def test_pages_behind_a_part_on_the_host_are_refused() -> None:
    bench = Bench()
    bench.back_up(bench.insert("AB").node)
    bench.evict(Tier.DEVICE, 2)

    with pytest.raises(InvariantError, match="are not on the device"):
        bench.tree.insert(key("ABCD"), [60, 61], 2, first_page=2)


@pytest.mark.parametrize("pages", [[], [1, 2, 3]])
def test_another_number_of_pages_than_the_keys_is_refused(pages: list[int]) -> None:
    with pytest.raises(InvariantError, match="of a key"):
        RadixTree(4).insert(key("AB"), pages, 1)


def test_priority_is_the_highest_of_the_requests_that_share_a_node() -> None:
    bench = Bench()
    bench.insert("ABCD", priority=3)
    bench.insert("ABX", priority=1)

    nodes = {node.label[-4]: node for node in bench.tree.books.nodes()}

    assert {chr(letter): node.priority for letter, node in nodes.items()} == {"A": 3, "C": 3, "X": 1}


def test_an_insertion_of_another_rotation_is_refused_whole() -> None:
    """The path's pages have their owners; pages that continue another sequence of owners do not fit behind."""
    tree = RadixTree(4)
    tree.insert(key("AB"), [0, 1], 1, rotation=0)

    done = tree.insert(key("ABCD"), [0, 1, 12, 13], 2, rotation=1)

    assert done.refused
    assert done.unused.tolist() == [12, 13]
    assert done.node is tree.root
    assert tree.match(key("ABCD")).num_device == 2


def test_an_insertion_of_the_same_rotation_extends_the_path() -> None:
    tree = RadixTree(4)
    tree.insert(key("ABCD"), [0, 1, 2, 3], 1, rotation=1)

    done = tree.insert(key("ABX"), [0, 1, 13], 2, rotation=1)

    assert not done.refused
    assert {node.rotation for node in tree.books.nodes()} == {1}


def test_host_pages_of_another_rotation_are_refused() -> None:
    tree = RadixTree(4)
    tree.insert(key("AB"), [0, 1], 1, rotation=1)

    done = tree.insert_host(key("ABC"), [12], 2, first_page=2, rotation=0)

    assert (done.refused, done.unused.tolist()) == (True, [12])


def test_fetched_pages_become_a_part_on_the_host() -> None:
    bench = Bench()
    bench.insert("AB")

    done = bench.tree.insert_host(key("ABCD"), bench.host.take(2), bench.tick(), first_page=2)
    bench.check()

    assert done.unused.tolist() == []
    assert bench.spell() == {"AB", "ABCD*"}
    assert bench.tree.match(key("ABCD")).num_host == 2


def test_fetched_pages_are_known_to_be_stored_where_their_prefix_is() -> None:
    bench = Bench()
    bench.tree.insert_host(key("AB"), bench.host.take(2), bench.tick())
    bench.tree.insert_host(key("ABCD"), bench.host.take(2), bench.tick(), first_page=2)
    bench.insert("XY")
    bench.tree.insert_host(key("XYZ"), bench.host.take(1), bench.tick(), first_page=2)
    bench.check()

    assert bench.tree.match(key("ABCD")).num_stored == 4
    assert bench.tree.match(key("XYZ")).num_stored == 0


def test_fetched_pages_serve_as_the_backup_of_what_is_on_the_device() -> None:
    bench = Bench()
    bench.insert("ABCD")

    done = bench.tree.insert_host(key("ABCD"), bench.host.take(2), bench.tick(), first_page=2)
    bench.check()

    assert done.unused.tolist() == []
    assert bench.tree.match(key("ABCD")).last_node.host.pages is not None
    assert bench.tree.match(key("AB")).last_node.host.pages is None


def test_fetched_pages_that_the_host_has_stay_the_callers() -> None:
    bench = Bench()
    bench.back_up(bench.insert("AB").node)
    pages = bench.host.take(3)

    done = bench.tree.insert_host(key("ABC"), pages, bench.tick())

    assert done.unused.tolist() == pages[:2]


def test_fetched_pages_whose_prefix_was_evicted_stay_the_callers() -> None:
    bench = Bench()
    bench.insert("AB")
    bench.evict(Tier.DEVICE, 2)
    pages = bench.host.take(2)

    done = bench.tree.insert_host(key("ABCD"), pages, bench.tick(), first_page=2)

    assert done.unused.tolist() == pages
    assert bench.spell() == set()


def test_two_hundred_thousand_tokens_are_one_node() -> None:
    tree = RadixTree(1)
    prompt = Key.of(range(200_000), 1)

    tree.insert(prompt, range(200_000), 1)

    assert tree.books.num_nodes == 1
    assert tree.match(prompt).num_device == 200_000
