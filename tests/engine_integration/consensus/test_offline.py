"""Logs side by side: the first difference of all ranks, of TP peers, and of the stages at one position."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from hicache_storage.engine_integration.consensus.divergence import Differs
from hicache_storage.engine_integration.consensus.entry import Entry, Rank
from hicache_storage.engine_integration.consensus.offline import Comparison, compare, comparisons

RANKS = [Rank(pp, tp) for pp in range(2) for tp in range(2)]


def log(values: Sequence[str]) -> list[Entry]:
    """Return calls and returns in turn; an entry is spelled by its value."""
    return [Entry(number, "return" if number % 2 else "call", "f", value, 0.0) for number, value in enumerate(values)]


def compared(logs: dict[Rank, list[Entry]], history: int = 4) -> dict[str, Comparison]:
    groups = compare({rank: iter(entries) for rank, entries in logs.items()}, history=history)
    return {group.name: group for group in groups}


def where(groups: dict[str, Comparison]) -> dict[str, tuple[int, Differs] | None]:
    return {
        name: None if group.divergence is None else (group.divergence.number, group.divergence.differs)
        for name, group in groups.items()
    }


def test_ranks_are_compared_with_all_with_their_peers_and_with_their_place_in_other_stages() -> None:
    assert [(group.name, list(group.ranks)) for group in comparisons(RANKS)] == [
        ("all ranks", RANKS),
        ("TP peers of pp0", [Rank(0, 0), Rank(0, 1)]),
        ("TP peers of pp1", [Rank(1, 0), Rank(1, 1)]),
        ("tp0 of all stages", [Rank(0, 0), Rank(1, 0)]),
        ("tp1 of all stages", [Rank(0, 1), Rank(1, 1)]),
    ]


def test_a_rank_without_peers_is_compared_with_all_only() -> None:
    assert [group.name for group in comparisons([Rank(0, 0), Rank(1, 1)])] == ["all ranks"]


@pytest.mark.parametrize("odd", RANKS)
@pytest.mark.parametrize(("at", "differs"), [(2, Differs.PARAMETERS), (3, Differs.RESULTS)])
def test_the_groups_of_the_odd_rank_differ_and_the_others_do_not(odd: Rank, at: int, differs: Differs) -> None:
    logs = {rank: log("abcdef") for rank in RANKS}
    logs[odd][at] = logs[odd][at]._replace(value="X")

    found = where(compared(logs))

    expected = {group.name: (at, differs) if odd in group.ranks else None for group in comparisons(RANKS)}
    assert found == expected


def test_another_function_or_another_event_is_another_order() -> None:
    call = log("abcd")[2]
    for other in (call._replace(name="g"), call._replace(event="return"), call._replace(event="end")):
        logs = {rank: log("abcd") for rank in RANKS[:2]}
        logs[Rank(0, 1)][2] = other

        assert where(compared(logs))["all ranks"] == (2, Differs.ORDER)


def test_raising_instead_of_returning_is_another_result() -> None:
    logs = {rank: log("abcd") for rank in RANKS[:2]}
    logs[Rank(0, 1)][1] = logs[Rank(0, 1)][1]._replace(event="raise")

    assert where(compared(logs))["all ranks"] == (1, Differs.RESULTS)


def test_a_log_that_ends_while_others_go_on_differs_there() -> None:
    logs = {rank: log("abcdef") for rank in RANKS}
    del logs[Rank(1, 0)][4:]

    groups = compared(logs)

    assert where(groups)["all ranks"] == (4, Differs.LENGTH)
    assert where(groups)["TP peers of pp0"] is None
    divergence = groups["all ranks"].divergence
    assert divergence is not None
    assert divergence.entries[Rank(1, 0)] is None


def test_what_a_log_lacks_at_its_beginning_or_in_between_is_not_compared() -> None:
    logs = {rank: log("abcdefgh") for rank in RANKS}
    del logs[Rank(0, 1)][:3]
    del logs[Rank(1, 1)][5]
    logs[Rank(0, 0)][1] = logs[Rank(0, 0)][1]._replace(value="X")

    assert set(where(compared(logs)).values()) == {None}


def test_times_are_not_compared() -> None:
    logs = {rank: [entry._replace(at_s=float(rank.tp_rank)) for entry in log("ab")] for rank in RANKS}

    assert set(where(compared(logs)).values()) == {None}


def test_empty_logs_are_equal_and_an_empty_one_beside_another_is_not() -> None:
    assert where(compared({RANKS[0]: [], RANKS[1]: []}))["all ranks"] is None
    assert where(compared({RANKS[0]: [], RANKS[1]: log("a")}))["all ranks"] == (0, Differs.LENGTH)


def test_the_entries_before_are_the_last_equal_ones() -> None:
    logs = {rank: log("abcdef") for rank in RANKS[:2]}
    logs[RANKS[1]][4] = logs[RANKS[1]][4]._replace(value="X")

    divergence = compared(logs, history=2)["all ranks"].divergence

    assert divergence is not None
    assert [entry.number for entry in divergence.before] == [2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_the_first_of_many_differences_is_found(seed: int) -> None:
    rng = random.Random(seed)
    logs = {rank: log("a" * 60) for rank in RANKS}
    changed = {(rng.choice(RANKS), rng.randrange(60)) for _ in range(4)}
    for rank, at in changed:
        logs[rank][at] = logs[rank][at]._replace(value="X")

    found = where(compared(logs))

    first = min(at for _, at in changed)
    for group in comparisons(RANKS):
        differs_there = len({logs[rank][first] for rank in group.ranks}) > 1
        place = found[group.name]
        assert (None if place is None else place[0]) == (first if differs_there else None)


def test_what_ranks_do_after_they_have_parted_is_not_compared() -> None:
    """They fail one after another then, and peers who had agreed differ as well."""
    logs = {rank: log("abcdefgh") for rank in RANKS}
    logs[Rank(1, 1)][2] = logs[Rank(1, 1)][2]._replace(value="X")
    logs[Rank(0, 0)] = logs[Rank(0, 0)][:5]

    found = where(compared(logs))

    assert found["all ranks"] == (2, Differs.PARAMETERS)
    assert found["TP peers of pp0"] is None
