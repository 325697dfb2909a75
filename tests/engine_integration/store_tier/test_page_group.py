"""A page of several parts is there only if every part is (F11), and budgets and queues keep exact books."""

from __future__ import annotations

import pytest

from hicache_storage.engine_integration.store_tier.acks import AckQueue
from hicache_storage.engine_integration.store_tier.budget import PageBudget
from hicache_storage.engine_integration.store_tier.page_group import PageGroup, Part
from hicache_storage.errors import InvariantError
from tests.engine_integration.store_tier.pages import ScriptedPages

HASHES = [f"page{number}" for number in range(6)]


def part(name: str, pages: ScriptedPages, *, writes: bool = True) -> Part:
    return Part(name, pages, lambda _: memoryview(b""), writes)


def test_a_part_that_vanished_after_the_lookup_ends_the_prefix() -> None:
    target, draft = ScriptedPages(HASHES), ScriptedPages(HASHES)
    group = PageGroup(part("kv", target), [part("draft", draft)])

    found = group.lookup(HASHES)
    draft.held.remove(HASHES[4])

    assert (found, group.read(HASHES, range(6))) == (6, 4)


def test_the_shortest_part_bounds_the_lookup() -> None:
    group = PageGroup(part("kv", ScriptedPages(HASHES)), [part("draft", ScriptedPages(HASHES[:2]))])

    assert group.lookup(HASHES) == 2


def test_companions_are_stored_before_the_anchor_and_bound_it() -> None:
    target, draft = ScriptedPages(), ScriptedPages()
    draft.unwritable = {HASHES[3]}
    group = PageGroup(part("kv", target), [part("draft", draft)])

    assert group.write(HASHES, range(6)) == 3
    assert target.held == set(HASHES[:3])


def test_a_rank_that_is_not_the_writer_writes_nothing_and_holds_nobody_up() -> None:
    pages = ScriptedPages()

    assert PageGroup(part("kv", pages, writes=False)).write(HASHES, range(6)) == 6
    assert pages.calls == []


def test_a_budget_takes_all_or_nothing() -> None:
    budget = PageBudget(10)

    assert budget.acquire(6)
    assert not budget.acquire(5)
    assert (budget.held, budget.free) == (6, 4)


@pytest.mark.parametrize("pages", [-1, 7])
def test_a_release_of_what_is_not_held_raises_and_changes_nothing(pages: int) -> None:
    budget = PageBudget(10)
    budget.acquire(6)

    with pytest.raises(InvariantError, match="6 held"):
        budget.release(pages)
    assert budget.held == 6


def test_only_agreed_counts_are_taken() -> None:
    acks: AckQueue[int] = AckQueue()
    for number in range(3):
        acks.put(number)

    assert acks.take(2) == [0, 1]
    with pytest.raises(InvariantError, match="2 acknowledgements asked for, 1 ready"):
        acks.take(2)
    assert acks.take(1) == [2]
