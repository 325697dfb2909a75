"""Pages on their way: what is safe meanwhile, what splits do, and that everything ends once."""

from __future__ import annotations

import pytest

from hicache_storage.engine_integration.radix import Node, Tier, Transfer
from hicache_storage.errors import InvariantError
from tests.engine_integration.radix.pages import Bench, hashes, key


def begin_backup(bench: Bench, node: Node) -> Transfer:
    nodes = bench.tree.unbacked(node)
    return bench.tree.transfers.begin_backup(nodes, bench.host.take(sum(one.num_pages for one in nodes)))


def on_host(bench: Bench, letters: str) -> Node:
    """Make *letters* a prefix that is on the host alone."""
    node = bench.insert(letters).node
    bench.back_up(node)
    bench.evict(Tier.DEVICE, 1000)
    return bench.tree.match(key(letters)).last_node


def test_a_backup_shows_on_the_host_when_it_is_complete_and_not_before() -> None:
    bench = Bench()
    node = bench.insert("AB").node
    running = begin_backup(bench, node)
    bench.check()

    assert node.host.pages is None
    bench.tree.transfers.complete(running)
    assert node.host.pages == running.target


def test_source_and_target_name_the_same_pages_in_order() -> None:
    bench = Bench()
    bench.insert("AB")
    node = bench.insert("ABCD").node

    running = begin_backup(bench, node)

    assert running.source.tolist() == [0, 1, 2, 3]
    assert running.target.tolist() == [100_000, 100_001, 100_002, 100_003]


def test_a_node_split_while_its_backup_runs_keeps_every_page_key_and_lock_right() -> None:
    """Field fault 23: ABCD is being copied, ABX splits it, the copy ends, two more splits follow."""
    bench = Bench()
    node = bench.insert("ABCD").node
    backup = begin_backup(bench, node)
    where = dict(zip("ABCD", backup.target, strict=True))

    bench.insert("ABX")
    bench.tree.transfers.complete(backup)
    bench.check()
    store = bench.tree.transfers.begin_store(bench.tree.unstored(node))
    written = dict(zip(store.hashes, store.source, strict=True))
    bench.insert("AY")
    bench.insert("ABCZ")
    bench.tree.transfers.complete(store)
    bench.check()

    assert written == dict(zip(hashes("ABCD"), where.values(), strict=True))
    assert bench.tree.match(key("ABCD")).num_stored == 4
    assert bench.tree.books.locked == [0, 0]
    bench.evict(Tier.DEVICE, 1000)
    assert bench.tree.match(key("ABCD")).host_pages().tolist() == list(where.values())
    bench.evict(Tier.HOST, 1000)
    assert (bench.spell(), bench.device.held, bench.host.held) == (set(), set(), set())


def test_a_node_split_while_its_load_runs_keeps_every_page_right() -> None:
    bench = Bench()
    node = on_host(bench, "ABCD")
    load = bench.tree.transfers.begin_load(bench.tree.unloaded(node), bench.device.take(4))
    where = load.target.tolist()

    bench.insert("ABX")
    bench.insert("AY")
    bench.tree.transfers.complete(load)
    bench.check()

    assert bench.tree.match(key("ABCD")).device_pages().tolist() == where
    assert bench.tree.books.locked == [0, 0]


def test_a_node_that_is_being_backed_up_is_not_evicted() -> None:
    bench = Bench()
    running = begin_backup(bench, bench.insert("ABCD").node)

    assert len(bench.evict(Tier.DEVICE, 4).device_pages) == 0
    bench.tree.transfers.complete(running)
    assert len(bench.evict(Tier.DEVICE, 4).device_pages) == 4


def test_host_pages_are_not_given_away_while_a_load_reads_them() -> None:
    """Field fault 12: eviction under pressure must not recycle what a transfer reads."""
    bench = Bench()
    node = on_host(bench, "ABCD")
    load = bench.tree.transfers.begin_load([node], bench.device.take(4))

    assert len(bench.evict(Tier.HOST, 4, copies=True).host_pages) == 0
    bench.tree.transfers.complete(load)
    assert len(bench.evict(Tier.HOST, 4, copies=True).host_pages) == 4


def test_host_pages_are_not_given_away_while_the_store_takes_them() -> None:
    bench = Bench()
    node = on_host(bench, "ABCD")
    store = bench.tree.transfers.begin_store([node])

    assert len(bench.evict(Tier.HOST, 4).host_pages) == 0
    bench.tree.transfers.complete(store)
    assert len(bench.evict(Tier.HOST, 4).host_pages) == 4


def test_a_load_is_on_the_device_at_once_and_named_by_who_matches_it() -> None:
    bench = Bench()
    node = on_host(bench, "ABCD")
    load = bench.tree.transfers.begin_load([node], bench.device.take(4))
    bench.check()

    assert bench.tree.match(key("ABX")).loads == (load,)
    assert bench.tree.match_and_split(key("ABX"), bench.tick()).loads == (load,)
    bench.tree.transfers.complete(load)
    assert bench.tree.match(key("ABCD")).loads == ()


@pytest.mark.parametrize("ended_by", ["complete", "abort"])
def test_a_transfer_ends_once(ended_by: str) -> None:
    bench = Bench()
    running = begin_backup(bench, bench.insert("ABCD").node)
    bench.host.free(bench.tree.transfers.abort(running))

    with pytest.raises(InvariantError, match="ended twice"):
        getattr(bench.tree.transfers, ended_by)(running)

    bench.check()


def test_an_aborted_backup_gives_its_pages_back_and_leaves_no_lock() -> None:
    bench = Bench()
    node = bench.insert("ABCD").node
    running = begin_backup(bench, node)
    bench.insert("ABX")

    bench.host.free(bench.tree.transfers.abort(running))
    bench.check()

    assert (bench.host.held, bench.tree.books.locked) == (set(), [0, 0])
    assert sum(one.num_pages for one in bench.tree.unbacked(node)) == 4


def test_an_aborted_load_leaves_the_pages_on_the_host() -> None:
    bench = Bench()
    node = on_host(bench, "ABCD")
    load = bench.tree.transfers.begin_load([node], bench.device.take(4))
    bench.use("AB")

    bench.device.free(bench.tree.transfers.abort(load))
    bench.check()

    assert bench.spell() == {"AB*", "ABCD*"}
    assert bench.device.held == set()


@pytest.mark.parametrize("use", ["lock", "insert below"])
def test_a_load_that_somebody_uses_cannot_be_undone(use: str) -> None:
    bench = Bench()
    node = on_host(bench, "ABCD")
    load = bench.tree.transfers.begin_load([node], bench.device.take(4))
    if use == "lock":
        bench.tree.lock(bench.use("AB"), Tier.DEVICE)
    else:
        bench.insert("ABX")

    with pytest.raises(InvariantError, match="cannot be undone"):
        bench.tree.transfers.abort(load)

    bench.check()
    assert load.is_open


def test_nothing_is_backed_up_twice() -> None:
    bench = Bench()
    node = bench.insert("AB").node
    running = begin_backup(bench, node)

    assert bench.tree.unbacked(node) == []
    with pytest.raises(InvariantError, match="on its way"):
        bench.tree.transfers.begin_backup([node], [7, 8])
    bench.tree.transfers.complete(running)
    with pytest.raises(InvariantError, match="on the host"):
        bench.tree.transfers.begin_backup([node], [7, 8])


def test_pages_fetched_while_their_backup_runs_stay_the_callers() -> None:
    bench = Bench()
    running = begin_backup(bench, bench.insert("AB").node)
    pages = bench.host.take(2)

    done = bench.tree.insert_host(key("AB"), pages, bench.tick())
    bench.host.free(done.unused)
    bench.tree.transfers.complete(running)
    bench.check()

    assert done.unused.tolist() == pages


def test_a_node_can_be_split_so_that_a_part_is_backed_up() -> None:
    bench = Bench()
    node = bench.insert("ABCD").node

    upper = bench.tree.split(node, 1)
    bench.back_up(upper)

    assert (upper.host.pages is not None, node.host.pages) == (True, None)


@pytest.mark.parametrize("pages", [0, 4, -1])
def test_a_split_leaves_no_empty_node(pages: int) -> None:
    bench = Bench()
    node = bench.insert("ABCD").node

    with pytest.raises(InvariantError, match="cannot be split"):
        bench.tree.split(node, pages)


def test_what_is_stored_is_a_prefix_when_a_write_succeeds_in_part() -> None:
    bench = Bench()
    node = on_host(bench, "ABCD")
    store = bench.tree.transfers.begin_store([node])

    bench.tree.transfers.complete(store, num_stored=3)
    again = bench.tree.transfers.begin_store(bench.tree.unstored(node))
    bench.check()

    assert bench.tree.match(key("ABCD")).num_stored == 3
    assert again.hashes == tuple(hashes("ABCD")[3:])
    assert again.first_page == 3


def test_a_child_stored_before_its_parent_does_not_count() -> None:
    """Field fault 13: no reader would find it."""
    bench = Bench()
    upper = on_host(bench, "AB")
    lower = bench.tree.insert_host(key("ABCD"), bench.host.take(2), bench.tick(), first_page=2, stored=False).node
    first, second = (bench.tree.transfers.begin_store([node]) for node in (upper, lower))

    bench.tree.transfers.complete(first, num_stored=1)
    bench.tree.transfers.complete(second)
    bench.check()

    assert bench.tree.match(key("ABCD")).num_stored == 1
    assert bench.tree.unstored(lower) == [upper, lower]


def test_what_may_be_stored_ends_at_the_first_page_without_a_host_copy() -> None:
    bench = Bench()
    upper = bench.insert("AB").node
    lower = bench.insert("ABCD").node
    bench.tree.transfers.complete(bench.tree.transfers.begin_backup([lower], bench.host.take(2)))

    assert bench.tree.unstored(lower) == []
    bench.back_up(upper)
    assert bench.tree.unstored(lower) == [upper, lower]


def test_what_the_store_is_taking_is_not_offered_to_it_again() -> None:
    bench = Bench()
    node = on_host(bench, "AB")
    bench.tree.transfers.begin_store([node])

    assert bench.tree.unstored(node) == []


def test_knowledge_of_the_store_is_forgotten_downwards() -> None:
    bench = Bench()
    bench.tree.insert_host(key("AB"), bench.host.take(2), bench.tick())
    node = bench.tree.insert_host(key("ABCD"), bench.host.take(2), bench.tick(), first_page=2).node

    bench.tree.forget_stored(node)
    assert bench.tree.match(key("ABCD")).num_stored == 2
    bench.tree.forget_stored()
    assert bench.tree.match(key("ABCD")).num_stored == 0


@pytest.mark.parametrize("pages", [1, 3])
def test_a_transfer_with_another_number_of_pages_is_refused_and_changes_nothing(pages: int) -> None:
    bench = Bench()
    node = bench.insert("AB").node

    with pytest.raises(InvariantError, match="target pages for 2"):
        bench.tree.transfers.begin_backup([node], range(pages))

    bench.check()


def test_nodes_of_two_paths_are_no_transfer() -> None:
    bench = Bench()
    nodes = [bench.insert(letters).node for letters in ("AA", "BB")]

    with pytest.raises(InvariantError, match="one path"):
        bench.tree.transfers.begin_backup(nodes, range(4))


def test_a_load_starts_where_the_device_part_ends() -> None:
    bench = Bench()
    upper = on_host(bench, "AB")
    lower = bench.tree.insert_host(key("ABCD"), bench.host.take(2), bench.tick(), first_page=2).node

    with pytest.raises(InvariantError, match="above it is not on the device"):
        bench.tree.transfers.begin_load([lower], bench.device.take(2))

    assert bench.tree.unloaded(lower) == [upper, lower]
