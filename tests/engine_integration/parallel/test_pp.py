"""pp_sync: later stages do what the first one decided, without waiting for one another. Stages are threads here."""

from __future__ import annotations

import random
import threading
import tracemalloc

import pytest

from hicache_storage.engine_integration.store_tier.acks import AckQueue
from hicache_storage.errors import RankFailure
from tests.engine_integration.parallel.pipeline import PATIENCE_S, SHAPES, Place, on_all, places


@pytest.mark.parametrize(("num_stages", "tp"), SHAPES)
def test_every_rank_gets_the_smallest_counts_of_the_first_stage(num_stages: int, tp: int) -> None:
    ranks = places(num_stages, tp)

    results = on_all(ranks, lambda place: place.sync.agree("acks", lambda: (5 - place.rank, 3 + place.rank), 2))

    assert results == [[6 - tp, 3]] * len(ranks)


def test_what_later_stages_have_ready_does_not_matter_and_is_not_asked() -> None:
    def counts(place: Place) -> list[int]:
        assert place.stage == 0
        return [2]

    results = on_all(places(3, 2), lambda place: place.sync.agree("acks", lambda: counts(place), 1))

    assert results == [[2]] * 6


@pytest.mark.parametrize("count", [0, 1, 60, 61, 62, 200])
def test_any_number_of_questions_is_answered(count: int) -> None:
    answers = [(-1) ** n * (2**62 - n) for n in range(count)]

    assert on_all(places(3, 1), lambda place: place.sync.agree("many", lambda: answers, count)) == [answers] * 3


@pytest.mark.parametrize("dissenter", range(2))
def test_a_decision_is_yes_only_if_all_ranks_of_the_first_stage_say_so(dissenter: int) -> None:
    ranks = places(2, 2)

    assert on_all(ranks, lambda place: place.sync.decide("wait", lambda: place.tp_rank != dissenter)) == [False] * 4
    assert on_all(ranks, lambda place: place.sync.decide("wait", lambda: True)) == [True] * 4


def test_a_rank_alone_decides_alone() -> None:
    sync = places(1, 1)[0].sync

    assert sync.agree("acks", lambda: (4, 0), 2) == [4, 0]


def test_the_first_stage_goes_on_while_later_ones_have_not_come() -> None:
    """No stage waits for a later one: each finishes all of its steps before the next one begins."""
    first, middle, last = places(3, 1)

    for place in (first, middle, last):
        answers = [place.sync.agree("acks", lambda: (step,), 1) for step in range(20)]  # noqa: B023 - called at once

        assert answers == [[step] for step in range(20)]


def test_a_stage_does_its_earlier_work_while_another_one_is_late_at_a_checkpoint() -> None:
    """Stage 1 comes to the checkpoint only after stage 0 has done the work that lies behind it."""
    ranks = places(2, 1)
    work_done = threading.Event()

    def act(place: Place) -> list[int]:
        if place.stage == 1:
            assert work_done.wait(PATIENCE_S)
        agreed = place.sync.agree("checkpoint", lambda: (7,), 1)
        if place.stage == 0:
            work_done.set()
        return agreed

    assert on_all(ranks, act) == [[7], [7]]


def test_a_stage_that_is_too_far_ahead_waits_for_the_one_behind_it() -> None:
    ranks = places(2, 1, timeout_s=0.1, window=3)

    for step in range(3):
        ranks[0].sync.agree("acks", lambda: (step,), 1)  # noqa: B023 - called at once
    with pytest.raises(RankFailure, match="stage 1 does not take messages") as caught:
        ranks[0].sync.agree("acks", lambda: (3,), 1)

    assert list(caught.value.reasons) == [1]


def test_the_article_s_case_both_stages_use_four_pages_and_the_later_acknowledgement_stays_queued() -> None:
    """The first stage stops after ACK(4), while the second one holds ACK(6) already."""
    ranks = places(2, 1)
    queues: list[AckQueue[int]] = [AckQueue(), AckQueue()]
    for queue, acks in zip(queues, ([4], [4, 6]), strict=True):
        for ack in acks:
            queue.put(ack)

    def act(place: Place) -> tuple[int, bool, int]:
        queue = queues[place.stage]
        (count,) = place.sync.agree("progress", lambda: (queue.ready(),), 1)
        pages = max(queue.take(count))
        stops = place.sync.decide("stop waiting", lambda: True)
        return pages, stops, queue.ready()

    assert on_all(ranks, act) == [(4, True, 0), (4, True, 1)]
    assert queues[1].take(1) == [6]


def test_a_stage_waits_for_a_selected_acknowledgement_that_it_does_not_have_yet() -> None:
    ranks = places(2, 1)
    queues: list[AckQueue[str]] = [AckQueue(), AckQueue()]
    for name in ("A", "B"):
        queues[0].put(name)
    queues[1].put("A")
    late = threading.Event()

    def act(place: Place) -> list[str]:
        queue = queues[place.stage]
        (count,) = place.sync.agree("backups", lambda: (queue.ready(),), 1)
        if place.stage == 1:
            late.set()
        return [queue.wait() for _ in range(count)]

    def finish() -> None:
        assert late.wait(PATIENCE_S)
        queues[1].put("B")

    transfer = threading.Thread(target=finish)
    transfer.start()
    results = on_all(ranks, act)
    transfer.join()

    assert results == [["A", "B"]] * 2


@pytest.mark.parametrize(("num_stages", "tp"), [(1, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("seed", range(5))
def test_thousands_of_steps_never_mix(num_stages: int, tp: int, seed: int) -> None:
    steps = 1000
    plans = [[random.Random(seed * 10 + tp_rank).randrange(100) for _ in range(steps)] for tp_rank in range(tp)]

    def act(place: Place) -> list[int]:
        plan = plans[place.tp_rank]
        return [place.sync.agree(f"queue {step % 3}", lambda: (plan[step],), 1)[0] for step in range(steps)]  # noqa: B023 - called at once

    expected = [min(answers) for answers in zip(*plans, strict=True)]
    assert on_all(places(num_stages, tp), act) == [expected] * (num_stages * tp)


@pytest.mark.slow
def test_twenty_thousand_steps_leave_nothing_behind() -> None:
    ranks = places(3, 1)

    def steps(place: Place, count: int) -> None:
        for step in range(count):
            place.sync.agree("step", lambda: (step, 1, 2, 3, 4), 5)  # noqa: B023 - called at once
            place.sync.took(str(step))

    on_all(ranks, lambda place: steps(place, 500))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        results = on_all(ranks, lambda place: steps(place, 20_000))
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert results == [None] * 3
    assert after - before < 100_000
    assert peak - before < 1_000_000


def test_equal_counts_of_different_entries_fail_on_every_rank_at_the_next_step() -> None:
    for odd in range(4):
        ranks = places(2, 2)

        def act(place: Place, odd: int = odd) -> list[int]:
            place.sync.agree("acks", lambda: (1,), 1)
            place.sync.took("request-b" if place.rank == odd else "request-a")
            return place.sync.agree("acks", lambda: (0,), 1)

        results = on_all(ranks, act)

        # A rank of the first stage fails all; one of a later stage fails itself, and those behind it.
        expected = range(4) if odd < 2 else [odd]
        for rank in expected:
            failure = results[rank]
            assert isinstance(failure, RankFailure)
            assert odd in failure.reasons
            assert "has taken other entries" in failure.reasons[odd]


def test_entries_in_another_order_are_different_entries() -> None:
    ours, theirs = places(2, 1)
    ours.sync.took("a", "b")
    theirs.sync.took("b", "a")

    ours.sync.agree("acks", lambda: (0,), 1)
    with pytest.raises(RankFailure, match="has taken other entries"):
        theirs.sync.agree("acks", lambda: (0,), 1)


def test_a_stage_at_another_step_fails_and_so_do_those_behind_it() -> None:
    ranks = places(3, 1)

    results = on_all(ranks, lambda place: place.sync.agree("loads" if place.stage == 1 else "backups", lambda: (1,), 1))

    assert results[0] == [1]
    for failure in results[1:]:
        assert isinstance(failure, RankFailure)
        assert failure.reasons.keys() <= {0, 1}
        assert "is at another step" in failure.reasons[0]


def test_a_stage_that_left_out_a_step_fails_although_the_steps_are_called_the_same() -> None:
    first, second = places(2, 1)
    first.sync.agree("acks", lambda: (1,), 1)
    first.sync.agree("acks", lambda: (2,), 1)
    first.link.leave()
    second.link.receive("stolen")

    with pytest.raises(RankFailure, match="in turn 2"):
        second.sync.agree("acks", lambda: (0,), 1)


def test_another_number_of_questions_is_another_step() -> None:
    first, second = places(2, 1)
    first.sync.agree("acks", lambda: (1, 2), 2)

    with pytest.raises(RankFailure, match="is at another step"):
        second.sync.agree("acks", lambda: (1, 2, 3), 3)


@pytest.mark.parametrize(("num_stages", "tp"), SHAPES)
def test_ranks_that_have_the_same_go_on(num_stages: int, tp: int) -> None:
    assert on_all(places(num_stages, tp), lambda place: place.sync.same("capacity", (80, 26))) == [None] * (
        num_stages * tp
    )


@pytest.mark.parametrize(("num_stages", "tp"), [shape for shape in SHAPES if shape != (1, 1)])
def test_a_rank_that_has_something_else_is_named_with_both_answers(num_stages: int, tp: int) -> None:
    for odd in range(num_stages * tp):
        ranks = places(num_stages, tp)

        results = on_all(ranks, lambda place, odd=odd: place.sync.same("capacity", (86 if place.rank == odd else 80,)))  # type: ignore[misc]

        for place, result in zip(ranks, results, strict=True):
            # Among the first stage's ranks nobody is right alone; a later rank fails itself, and those behind it.
            fails = (odd < tp and tp > 1) or (place.rank % tp == odd % tp and place.rank >= (odd if odd >= tp else 1))
            assert isinstance(result, RankFailure) == fails, (odd, place.rank, result)
            if isinstance(result, RankFailure):
                assert ("80" in str(result), "86" in str(result), odd in result.reasons) == (True, True, True)
