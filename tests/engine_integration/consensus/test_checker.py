"""Ranks that do the same are left alone; ranks that do not all say where they parted."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from hicache_storage.engine_integration.consensus import Checker, Differs, rank_consensus
from hicache_storage.engine_integration.consensus.entry import Entry, Rank
from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.errors import RankFailure
from hicache_storage.layout import Topology
from tests.engine_integration.consensus.ranks import PATIENCE_S, Ranks, Turns, options
from tests.engine_integration.parallel.deadlines import end_patience

pytestmark = pytest.mark.usefixtures("checker_on")
TOPOLOGIES = ["tp2", "tp2pp2", "pp3"]


def decorated() -> tuple[Callable[[], None], Callable[[str, int, int], int]]:
    """Return ``poll()`` and ``match(request_id, pages, cached)``, decorated while the checker is on."""

    @rank_consensus
    def poll() -> None:
        """Nothing is compared but that it is called."""

    @rank_consensus(same_params=["request_id", "pages"], same_results=True)
    def match(request_id: str, pages: int, cached: int) -> int:
        return min(pages, cached)

    return poll, match


def found(ranks: Ranks) -> list[list[tuple[int, Differs]]]:
    return [[(one.number, one.differs) for one in checker.divergences] for checker in ranks.checkers]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_ranks_that_do_the_same_are_left_alone(topology: str, caplog: pytest.LogCaptureFixture) -> None:
    poll, match = decorated()
    ranks = Ranks(topology, options())

    def act(rank: int) -> None:
        for turn in range(700):
            poll()
            match(f"r{turn}", turn, 10)

    results = ranks.run(act)

    assert set(results) == {None}
    assert all(found_here == [] for found_here in found(ranks))
    assert caplog.records == []


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("odd", [0, 1])
def test_a_different_result_is_told_on_every_rank_with_both_values(
    topology: str, odd: int, caplog: pytest.LogCaptureFixture
) -> None:
    _, match = decorated()
    ranks = Ranks(topology, options())

    def act(rank: int) -> None:
        for turn in range(10):
            match(f"r{turn}", turn, 4 if rank == odd else 6)

    ranks.run(act)

    size = len(ranks.groups)
    assert [here[0] for here in found(ranks)] == [(11, Differs.RESULTS)] * size
    messages = [record.getMessage() for record in caplog.records if "entry 11:" in record.getMessage()]
    assert len(messages) == size
    for message in messages:
        assert "Found rank divergence at entry 11: results differ" in message
        assert "match returns result=4" in message
        assert "match returns result=5" in message
        assert "match(request_id='r5', pages=5)" in message


def test_a_different_parameter_is_told_before_the_result_that_comes_of_it() -> None:
    _, match = decorated()
    ranks = Ranks("tp2pp2", options())

    ranks.run(lambda rank: match("r", 3 + (rank == 2), 9))

    assert found(ranks) == [[(0, Differs.PARAMETERS), (1, Differs.RESULTS)]] * 4


@pytest.mark.parametrize("skipping", range(4))
def test_a_rank_that_skips_a_call_is_told_by_the_call_it_makes_instead(skipping: int) -> None:
    poll, match = decorated()
    ranks = Ranks("tp2pp2", options())

    def act(rank: int) -> None:
        match("a", 1, 1)
        if rank != skipping:
            poll()
        match("b", 1, 1)

    ranks.run(act)

    assert found(ranks) == [[(2, Differs.ORDER)]] * 4
    for checker in ranks.checkers:
        entries = checker.divergences[0].entries
        texts = {str(rank): str(entry).rpartition(">.")[2] for rank, entry in entries.items()}
        odd = str(list(entries)[skipping])
        assert texts.pop(odd) == "match(request_id='b', pages=1)"
        assert set(texts.values()) == {"poll()"}


def test_a_rank_that_raises_where_others_return_has_another_result() -> None:
    @rank_consensus
    def load(rank: int) -> float:
        return 1 / rank

    ranks = Ranks("tp2", options())

    ranks.run(load)

    assert [here[0] for here in found(ranks)] == [(1, Differs.RESULTS)] * 2


def test_a_rank_that_ends_early_is_told() -> None:
    poll, _ = decorated()
    ranks = Ranks("tp2", options())

    ranks.run(lambda rank: [poll() for _ in range(1 + rank)])

    assert found(ranks) == [[(2, Differs.ORDER)]] * 2


def test_a_rank_that_stands_still_is_told_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    poll, _ = decorated()
    ranks = Ranks("tp2pp2", options())
    compared, turns, forget = Turns(), Turns(), Checker._forget

    def forget_and_tell(checker: Checker, count: int) -> None:
        forget(checker, count)
        for _ in range(count):
            compared.done()

    monkeypatch.setattr(Checker, "_forget", forget_and_tell)
    everybody = threading.Barrier(4)

    def act(rank: int) -> None:
        poll()
        if rank == 0:
            compared.wait(4 * 2)  # a call and its return on each rank, after which nobody waits for anybody
            end_patience(monkeypatch, ranks.groups[0], came=3)
        everybody.wait(PATIENCE_S)
        if rank == 3:
            turns.wait(3)
        else:
            poll()
            ranks.checkers[rank]._thread.join()
            turns.done()

    ranks.run(act)

    for checker in ranks.checkers[:3]:
        (divergence,) = checker.divergences
        assert divergence.failure(checker._ranks).reasons[3] == "pp1/tp1: nothing"
        assert (divergence.number, divergence.differs) == (2, Differs.LENGTH)
        assert divergence.entries[Rank(1, 1)] is None


def test_stages_may_come_to_the_same_call_at_different_times() -> None:
    """The first stage makes all its calls before the second one makes any, and the other way round."""
    for first in (0, 1):
        poll, match = decorated()
        ranks = Ranks("pp2", options())
        turns = Turns()

        def act(
            rank: int,
            first: int = first,
            turns: Turns = turns,
            poll: Callable[[], None] = poll,
            match: Callable[[str, int, int], int] = match,
        ) -> None:
            if rank != first:
                turns.wait()
            for turn in range(300):
                poll()
                match("r", turn, 9)
            turns.done()

        assert ranks.run(act) == [None, None]
        assert found(ranks) == [[], []]


@pytest.mark.parametrize("seed", range(5))
def test_the_first_difference_is_found_wherever_it_is(seed: int) -> None:
    rng = random.Random(seed)
    poll, match = decorated()
    ranks = Ranks("tp2pp2", options())
    plan = [rng.random() < 0.5 for _ in range(600)]
    odd, at = rng.randrange(4), rng.randrange(600)

    def act(rank: int) -> None:
        for turn, is_poll in enumerate(plan):
            if (turn, rank) == (at, odd):
                match("other", 0, 0)
            elif is_poll:
                poll()
            else:
                match("r", turn, 9)

    ranks.run(act)

    expected = Differs.ORDER if plan[at] else Differs.PARAMETERS
    assert [here[0] for here in found(ranks)] == [(2 * at, expected)] * 4


def test_when_it_is_to_stop_each_rank_fails_at_its_next_call_and_says_why() -> None:
    poll, match = decorated()
    ranks = Ranks("tp2", options(on_divergence="stop"))
    ranks.run(lambda rank: match("a", 1, rank))  # compared when it returns

    for checker in ranks.checkers:
        with checker.guard(), pytest.raises(RankFailure) as caught:
            poll()

        assert caught.value.step == "rank consensus, entry 1"
        assert "returns result=0" in caught.value.reasons[0]
        assert "returns result=1" in caught.value.reasons[1]


def test_when_it_is_to_stop_somebody_hears_of_it_who_need_not_wait_for_the_next_call() -> None:
    _, match = decorated()
    heard: list[list[RankFailure]] = [[], []]
    groups = ThreadGroup.of(2, timeout_s=PATIENCE_S)

    def act(rank: int) -> None:
        chosen = options(on_divergence="stop")
        with (
            Checker(groups[rank], Topology.parse("tp2"), chosen, on_stop=heard[rank].append) as checker,
            checker.guard(),
        ):
            match("a", 1, rank)

    with ThreadPoolExecutor(2) as ranks:
        list(ranks.map(act, range(2)))

    assert [[failure.step for failure in here] for here in heard] == [["rank consensus, entry 1"]] * 2


def test_a_rank_that_fails_does_not_wait_for_those_that_wait_for_it() -> None:
    poll, _ = decorated()
    ranks = Ranks("tp2", options())
    turns = Turns()

    def act(rank: int) -> None:
        if rank == 0:
            ranks.checkers[0].close(timeout_s=0.01)
            turns.done()
        else:
            turns.wait()
            poll()

    assert ranks.run(act) == [None, None]
    assert found(ranks)[1] == [(0, Differs.ORDER)]
    ranks.checkers[0]._thread.join(PATIENCE_S)  # what it tells is of no other test


def test_what_ranks_parted_at_is_an_error_unless_one_of_them_has_raised_there() -> None:
    @rank_consensus(same_results=True)
    def share(rank: int, whole: int) -> float:
        return whole / rank

    apart, failing = Ranks("tp2", options()), Ranks("tp2", options())

    apart.run(lambda rank: share(rank + 1, 2))
    failing.run(lambda rank: share(rank, 2))

    failures = [checker.failure for checker in apart.checkers]
    assert all(failure is not None and "returns result=2.0" in failure.reasons[0] for failure in failures)
    assert [checker.failure for checker in failing.checkers] == [None, None]


def test_when_it_is_to_report_ranks_go_on_and_no_more_than_the_first_few_are_told() -> None:
    _, match = decorated()
    ranks = Ranks("tp2", options())

    results = ranks.run(lambda rank: [match("r", 1, rank) for _ in range(100)] != [])

    assert results == [True, True]
    assert [len(here) for here in found(ranks)] == [8, 8]


def test_the_history_is_as_long_as_it_is_chosen() -> None:
    _, match = decorated()
    ranks = Ranks("tp2", options(history=3))

    ranks.run(lambda rank: [match("r", turn, 5 + rank) for turn in range(8)])

    for checker in ranks.checkers:
        assert [entry.number for entry in checker.divergences[0].before] == [10, 11, 12]


@pytest.mark.parametrize("odd", [None, 0, 1])
def test_a_fault_of_the_checker_is_none_of_the_engine_and_no_divergence(
    odd: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether all ranks have it or one, which tells the others: they would take its silence for a divergence."""
    poll, _ = decorated()
    ranks = Ranks("tp2", options(on_divergence="stop"))
    digest = Entry.digest

    def broken(entry: Entry) -> int:
        if odd is None or threading.current_thread() is ranks.checkers[odd]._thread:
            raise ValueError("never mind")
        return digest(entry)

    monkeypatch.setattr(Entry, "digest", broken)

    def act(rank: int) -> None:
        poll()
        ranks.checkers[rank]._thread.join(PATIENCE_S)
        poll()

    assert ranks.run(act) == [None, None]
    assert found(ranks) == [[], []]
    assert caplog.text.count("rank_consensus.given_up") == 2


def test_more_entries_than_there_is_room_for_end_the_comparison_on_all_ranks_and_not_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The second rank never has too many: it hears that the first one has given up, and finds no fault with that."""
    monkeypatch.setattr("hicache_storage.engine_integration.consensus.recorder.MAX_WAITING", 50)
    poll, _ = decorated()
    ranks = Ranks("pp2", options(on_divergence="stop"))
    turns = Turns()

    def act(rank: int) -> None:
        if rank == 0:
            _ = [poll() for _ in range(400)]
            turns.done()
            return
        turns.wait()
        while ranks.checkers[1].recorder.is_compared:
            poll()
            ranks.checkers[1]._thread.join(0.001)

    assert ranks.run(act) == [None, None]
    assert found(ranks) == [[], []]
    assert caplog.text.count("rank_consensus.given_up") == 2


def test_a_rank_that_leaves_when_everybody_tells_its_entry_ends_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    _, match = decorated()
    ranks = Ranks("tp2", options())
    all_gather = ThreadGroup.all_gather

    def leave(end: ThreadGroup, step: str, values: Sequence[int]) -> list[list[int]]:
        if step == "rank consensus entry" and end.rank:
            end.leave()
            raise RankFailure(step, {end.rank: "left"})
        return all_gather(end, step, values)

    monkeypatch.setattr(ThreadGroup, "all_gather", leave)

    def act(rank: int) -> None:
        with suppress(RankFailure):
            match("a", rank, 1)
        ranks.checkers[rank]._thread.join(PATIENCE_S)

    assert ranks.run(act) == [None, None]
    assert [[one.number for one in checker.divergences] for checker in ranks.checkers] == [[0], [0]]


def test_a_rank_without_others_agrees_with_itself() -> None:
    poll, _ = decorated()
    ranks = Ranks("tp1", options())

    assert ranks.run(lambda rank: poll()) == [None]
    assert found(ranks) == [[]]
