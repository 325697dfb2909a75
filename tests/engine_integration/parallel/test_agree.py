"""Collectives: the same answer, or the same failure, on every rank. Ranks are threads here."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from hicache_storage.engine_integration.parallel.agree import (
    Group,
    SingleRank,
    agree_all,
    agree_each,
    agree_made,
    agree_min,
    agree_mins,
    agree_same,
)
from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.errors import RankFailure, StoreFull
from tests.engine_integration.parallel.deadlines import end_patience

SIZES = [1, 2, 3, 5]
PATIENCE_S = 60.0


def on_all_ranks(size: int, part: Callable[[Group], object]) -> list[object]:
    """Return what *part* returned or raised on each rank, run at the same time."""
    return on_all(ThreadGroup.of(size, timeout_s=PATIENCE_S), part)


def on_all(groups: Sequence[ThreadGroup], part: Callable[[Group], object]) -> list[object]:

    def run(group: ThreadGroup) -> object:
        try:
            return part(group)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(groups)) as ranks:
        return list(ranks.map(run, groups))


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_gets_the_smallest_answer(size: int) -> None:
    results = on_all_ranks(size, lambda group: agree_min(group, "hits", lambda: 10 - group.rank))

    assert results == [11 - size] * size


def test_a_rank_alone_agrees_with_itself() -> None:
    assert agree_mins(SingleRank(), "hits", lambda: (3, -4), 2) == [3, -4]


def test_questions_of_one_collective_are_answered_one_by_one() -> None:
    answers = [(1, 9, -(2**63)), (5, 2, 2**63 - 1)]

    results = on_all_ranks(2, lambda group: agree_mins(group, "counts", lambda: answers[group.rank], 3))

    assert results == [[1, 2, -(2**63)]] * 2


def test_each_rank_hears_what_every_one_says_in_their_order() -> None:
    results = on_all_ranks(3, lambda group: agree_each(group, "digests", lambda: (group.rank, -group.rank), 2))

    assert results == [[[0, 0], [1, -1], [2, -2]]] * 3


@pytest.mark.parametrize("dissenter", [0, 1, 2])
def test_all_agree_only_if_nobody_says_no(dissenter: int) -> None:
    results = on_all_ranks(3, lambda group: agree_all(group, "room", lambda: group.rank != dissenter))

    assert results == [False] * 3


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("failing", range(3))
def test_a_failure_on_one_rank_is_raised_on_every_rank_and_names_it(failing: int, step: int) -> None:
    def part(group: Group) -> None:
        for current in range(4):

            def local(current: int = current) -> int:
                if group.rank == failing and current == step:
                    raise StoreFull("4 pages wanted, 2 free", backend="file", op="write", key="k")
                return current

            agree_min(group, f"step {current}", local)

    results = on_all_ranks(3, part)

    for result in results:
        assert isinstance(result, RankFailure)
        assert result.step == f"step {step}"
        assert list(result.reasons) == [failing]
        assert "StoreFull" in result.reasons[failing]
        assert "4 pages wanted, 2 free" in result.reasons[failing]


def test_the_failing_rank_keeps_the_cause() -> None:
    cause = ValueError("odd")

    def part(group: Group) -> int:
        def local() -> int:
            raise cause

        return agree_min(group, "step", local)

    (result,) = on_all_ranks(1, part)

    assert isinstance(result, RankFailure)
    assert result.__cause__ is cause


def test_what_no_library_should_raise_is_a_failure_of_its_rank_like_any_other() -> None:
    """An SDK's panic or cancellation is no `Exception`; the rank that it hits must not part from the others for that."""

    def part(group: Group) -> int:
        def local() -> int:
            if group.rank:
                raise asyncio.CancelledError("planted")
            return 0

        return agree_min(group, "step", local)

    for result in on_all_ranks(2, part):
        assert isinstance(result, RankFailure)
        assert result.reasons == {1: "CancelledError: planted"}


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_stays_what_it_is_where_it_hits_and_the_others_hear_of_it(end: type[BaseException]) -> None:
    def part(group: Group) -> object:
        def local() -> int:
            if group.rank:
                raise end
            return 0

        try:
            return agree_min(group, "step", local)
        except (KeyboardInterrupt, SystemExit) as ended:
            return type(ended)

    other, hit = on_all_ranks(2, part)

    assert hit is end
    assert isinstance(other, RankFailure)
    assert end.__name__ in other.reasons[1]


def test_a_reason_is_cut_not_lost_and_never_broken_in_mid_character() -> None:
    def part(group: Group) -> int:
        def local() -> int:
            raise ValueError("ü" * 1000)

        return agree_min(group, "step", local)

    (result,) = on_all_ranks(1, part)

    assert isinstance(result, RankFailure)
    assert result.reasons[0].startswith("ValueError: üüü")
    assert "\ufffd" not in result.reasons[0]


@pytest.mark.parametrize("answer", [2**63, -(2**63) - 1, 0.5])
def test_an_answer_that_is_no_64_bit_integer_fails_on_every_rank(answer: float) -> None:
    results = on_all_ranks(2, lambda group: agree_min(group, "capacity", lambda: answer if group.rank else 7))  # type: ignore[arg-type, return-value]

    for result in results:
        assert isinstance(result, RankFailure)
        assert list(result.reasons) == [1]


def test_ranks_at_different_steps_all_fail() -> None:
    results = on_all_ranks(2, lambda group: agree_min(group, f"step of {group.rank}", lambda: 1))

    assert all(isinstance(result, RankFailure) for result in results)


def test_the_group_is_usable_after_an_agreed_failure() -> None:
    def part(group: Group) -> int:
        with pytest.raises(RankFailure):
            agree_min(group, "first", lambda: 1 // group.rank)
        return agree_min(group, "second", lambda: group.rank + 5)

    assert on_all_ranks(2, part) == [5, 5]


def test_an_answer_that_is_not_the_same_names_everybodys() -> None:
    results = on_all_ranks(2, lambda group: agree_same(group, "capacity", lambda: 100 + group.rank))

    for result in results:
        assert isinstance(result, RankFailure)
        assert result.reasons == {0: "says 100", 1: "says 101"}


def test_a_rank_that_never_comes_is_named_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = ThreadGroup.of(3, timeout_s=PATIENCE_S)
    end_patience(monkeypatch, groups[0], came=2)

    def part(group: Group) -> object:
        return None if group.rank == 1 else agree_min(group, "step", lambda: 1)

    first, absent, last = on_all(groups, part)

    assert absent is None
    for result in (first, last):
        assert isinstance(result, RankFailure)
        assert list(result.reasons) == [1]


def test_a_rank_that_leaves_releases_the_others_at_once() -> None:
    ends = ThreadGroup.of(2, timeout_s=PATIENCE_S)
    failures: list[RankFailure] = []

    def wait() -> None:
        with pytest.raises(RankFailure) as caught:
            agree_min(ends[0], "step", lambda: 1)
        failures.append(caught.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    ends[1].leave()
    waiting.join(PATIENCE_S)

    assert list(failures[0].reasons) == [1]


@pytest.mark.parametrize("seed", range(3))
def test_thousands_of_collectives_never_mix(seed: int) -> None:
    rounds = 2000
    plan = [[random.Random(seed * 31 + rank).randrange(1000) for _ in range(rounds)] for rank in range(3)]

    def part(group: Group) -> list[int]:
        answers = iter(plan[group.rank])
        return [agree_min(group, "round", lambda: next(answers)) for _ in range(rounds)]

    expected = [min(answers) for answers in zip(*plan, strict=True)]
    assert on_all_ranks(3, part) == [expected] * 3


@pytest.mark.parametrize("failing", [None, 0, 2])
def test_what_one_rank_cannot_make_no_rank_keeps(failing: int | None) -> None:
    kept = [set[int](), set[int](), set[int]()]

    def part(group: Group) -> int:
        mine = kept[group.rank]

        def make() -> int:
            if group.rank == failing:
                raise StoreFull("no room")
            mine.add(group.rank)
            return group.rank

        return agree_made(group, "host tier", make, mine.discard)

    results = on_all_ranks(3, part)

    if failing is None:
        assert results == [0, 1, 2]
        assert kept == [{0}, {1}, {2}]
        return
    assert kept == [set(), set(), set()]
    for result in results:
        assert isinstance(result, RankFailure)
        assert result.reasons == {failing: "StoreFull: no room"}


def test_a_rank_that_leaves_after_a_meeting_takes_nothing_from_those_who_were_there() -> None:
    """A thread may still be on its way out of the meeting when a faster one has gone on, failed, and left."""
    for _ in range(50):
        ends = ThreadGroup.of(4, timeout_s=PATIENCE_S)

        def part(end: ThreadGroup) -> list[list[int]]:
            everyone = end.all_gather("meeting", [end.rank])
            end.leave()
            return everyone

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(part, ends)) == [[[0], [1], [2], [3]]] * 4
