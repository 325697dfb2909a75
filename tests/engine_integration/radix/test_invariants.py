"""The self-check finds each book that is wrong."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from hicache_storage.engine_integration.radix import Node, RadixTree, Tier, check
from hicache_storage.errors import InvariantError
from tests.engine_integration.radix.pages import Bench


def bench_with_everything() -> tuple[Bench, Node, Node]:
    """Return a bench, its node AB on both tiers and known to the store, and the node CD below, on the device alone."""
    bench = Bench()
    upper = bench.insert("AB").node
    bench.back_up(upper)
    bench.tree.transfers.complete(bench.tree.transfers.begin_store([upper]))
    lower = bench.insert("ABCD").node
    bench.insert("XY")
    lower.page_hashes()
    bench.tree.lock(lower, Tier.DEVICE)
    bench.check()
    return bench, upper, lower


def lose_parent(tree: RadixTree, upper: Node, lower: Node) -> None:
    lower.parent = tree.root


def move_label(tree: RadixTree, upper: Node, lower: Node) -> None:
    upper.children = {b"else": lower}


def shift(tree: RadixTree, upper: Node, lower: Node) -> None:
    lower.first_page = 3


def change_scope(tree: RadixTree, upper: Node, lower: Node) -> None:
    lower.seed = "0" * 64


def rotate(tree: RadixTree, upper: Node, lower: Node) -> None:
    lower.rotation = 1


def miscount_children(tree: RadixTree, upper: Node, lower: Node) -> None:
    upper.device.children = 0


def lose_lock(tree: RadixTree, upper: Node, lower: Node) -> None:
    upper.device.locks = 0


def cut_tokens(tree: RadixTree, upper: Node, lower: Node) -> None:
    lower.buffer, lower.nbytes = lower.ids[:-4], lower.nbytes - 4


def change_tokens(tree: RadixTree, upper: Node, lower: Node) -> None:
    lower.buffer = bytes(4) + lower.ids[4:]


def lose_a_page(tree: RadixTree, upper: Node, lower: Node) -> None:
    assert lower.device.pages is not None
    lower.device.pages = lower.device.pages[:1]


def be_nowhere(tree: RadixTree, upper: Node, lower: Node) -> None:
    lower.device.pages = None
    upper.device.children = 0


def leave_the_device_below(tree: RadixTree, upper: Node, lower: Node) -> None:
    upper.device.pages = None
    tree.root.device.children = 1


def store_without_parent(tree: RadixTree, upper: Node, lower: Node) -> None:
    upper.stored, lower.stored = 1, 1


def use_after_now(tree: RadixTree, upper: Node, lower: Node) -> None:
    upper.last_used = 99


def use_child_after_parent(tree: RadixTree, upper: Node, lower: Node) -> None:
    lower.last_used = 3


def forge_hash(tree: RadixTree, upper: Node, lower: Node) -> None:
    assert lower.hashes is not None
    lower.hashes[1] = "0" * 64


def miscount_held(tree: RadixTree, upper: Node, lower: Node) -> None:
    tree.books.held[Tier.DEVICE] += 1


def miscount_locked(tree: RadixTree, upper: Node, lower: Node) -> None:
    tree.books.locked[Tier.DEVICE] -= 2


def miscount_copies(tree: RadixTree, upper: Node, lower: Node) -> None:
    tree.books.copies = 0


def miscount_nodes(tree: RadixTree, upper: Node, lower: Node) -> None:
    tree.books.num_nodes += 1


def hold_twice(tree: RadixTree, upper: Node, lower: Node) -> None:
    lower.device.pages = upper.device.pages


def hold_what_was_freed(tree: RadixTree, upper: Node, lower: Node) -> None:
    lower.device.pages = array("q", [998, 999])


def lose_a_leaf(tree: RadixTree, upper: Node, lower: Node) -> None:
    tree.books.leaves[Tier.HOST].forget(upper)


def rank_too_high(tree: RadixTree, upper: Node, lower: Node) -> None:
    tree.books.leaves[Tier.HOST].renew(upper)
    upper.priority = -1


FAULTS = {
    "does not know its parent": lose_parent,
    "another label than its own": move_label,
    "does not follow": shift,
    "another scope": change_scope,
    "another rotation": rotate,
    "counts 0 children in DEVICE": miscount_children,
    "0 are its own, 0 lie below": lose_lock,
    "bytes of tokens": cut_tokens,
    "label that is not its first page": change_tokens,
    "another number of DEVICE pages": lose_a_page,
    "in no tier": be_nowhere,
    "is on the device and": leave_the_device_below,
    "is stored and": store_without_parent,
    "used after now": use_after_now,
    "was used after": use_child_after_parent,
    "not those of its tokens": forge_hash,
    "DEVICE pages held, 7 counted": miscount_held,
    "DEVICE pages locked, 2 counted": miscount_locked,
    "copies, 0 counted": miscount_copies,
    "nodes, 4 counted": miscount_nodes,
    "are held twice": hold_twice,
    "held and not given out": hold_what_was_freed,
    "eviction would not find": lose_a_leaf,
    "stands too late": rank_too_high,
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_planted_fault_is_found(message: str) -> None:
    plant: Callable[[RadixTree, Node, Node], None] = FAULTS[message]
    bench, upper, lower = bench_with_everything()

    plant(bench.tree, upper, lower)

    with pytest.raises(InvariantError, match=message):
        bench.check()


def test_a_page_that_a_request_forgot_to_free_is_found() -> None:
    bench, _, _ = bench_with_everything()
    bench.device.take(1)

    with pytest.raises(InvariantError, match=r"DEVICE pages \[6\]"):
        bench.check()


def test_a_transfer_that_lost_its_lock_is_found() -> None:
    bench = Bench()
    node = bench.insert("AB").node
    bench.tree.transfers.begin_backup([node], bench.host.take(2))
    bench.tree.unlock(node, Tier.DEVICE)

    with pytest.raises(InvariantError, match="being moved and not locked"):
        bench.check()


def test_an_empty_tree_is_in_order() -> None:
    check(RadixTree(16), device_pages=(), host_pages=())
