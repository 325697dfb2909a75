"""Every rank failing at every step: who can know of it raises, names who failed, and nobody waits for ever."""

from __future__ import annotations

import threading

import pytest

from hicache_storage.errors import RankFailure, StoreFull
from tests.engine_integration.parallel.deadlines import SHORT_S
from tests.engine_integration.parallel.pipeline import PATIENCE_S, SHAPES, Place, on_all, places

STEPS = 3


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize(("num_stages", "tp"), SHAPES)
def test_a_rank_of_the_first_stage_that_fails_is_named_on_every_rank(num_stages: int, tp: int, step: int) -> None:
    for failing in range(tp):

        def counts(place: Place, at: int, failing: int = failing) -> tuple[int]:
            if (place.rank, at) == (failing, step):
                raise StoreFull("4 pages wanted, 2 free")
            return (at,)

        def act(place: Place) -> int:
            for at in range(STEPS):
                place.sync.agree(f"step {at}", lambda: counts(place, at), 1)  # noqa: B023 - called at once
            return STEPS

        for failure in on_all(places(num_stages, tp), act):
            assert isinstance(failure, RankFailure)
            assert failure.step == f"step {step}"
            assert failure.reasons == {failing: "StoreFull: 4 pages wanted, 2 free"}


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize(("num_stages", "tp"), [shape for shape in SHAPES if shape[0] > 1])
def test_a_rank_that_is_gone_is_named_by_whoever_waits_for_it(num_stages: int, tp: int, step: int) -> None:
    for gone in range(num_stages * tp):

        def act(place: Place, gone: int = gone, here: threading.Barrier = threading.Barrier(num_stages * tp)) -> int:  # noqa: B008 - one for all
            for at in range(STEPS):
                if at == step:
                    here.wait(PATIENCE_S)
                if (place.rank, at) == (gone, step):
                    place.leave()
                    return at
                place.sync.agree(f"step {at}", lambda: (at,), 1)  # noqa: B023 - called at once
            return STEPS

        results = on_all(places(num_stages, tp), act, ends=True)

        stage, tp_rank = divmod(gone, tp)
        assert results[gone] == step
        for rank, result in enumerate(results):
            is_behind = rank // tp > stage and rank % tp == tp_rank
            if is_behind or (stage == 0 and rank != gone):
                assert isinstance(result, RankFailure)
                assert gone in result.reasons
            elif rank != gone:
                # It had nothing to do with the rank that is gone, or has found out when it sent to one that had.
                assert result == STEPS or isinstance(result, RankFailure)


def test_a_message_that_does_not_come_in_time_names_the_stage_on_all_behind_it() -> None:
    ranks = places(4, 1)
    pipe = ranks[1].link._before
    assert pipe is not None
    pipe._timeout_s = SHORT_S

    results = on_all(ranks[1:], lambda place: place.sync.agree("acks", lambda: (1,), 1))

    for failure in results:
        assert isinstance(failure, RankFailure)
        assert failure.reasons == {0: "stage 0 sent nothing in time, or is gone"}


def test_each_stage_gives_up_before_the_one_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """So whoever misses a message has the time to say so to whoever misses the next one."""
    waited_s: list[float] = []

    def wait(_: threading.Condition, __: object, timeout_s: float) -> bool:
        waited_s.append(timeout_s)
        return False

    monkeypatch.setattr(threading.Condition, "wait_for", wait)
    for place in places(4, 1, timeout_s=2.0)[1:]:
        with pytest.raises(RankFailure, match=f"stage {place.stage - 1} sent nothing in time"):
            place.link.receive("acks")

    assert waited_s == [2.0, 4.0, 6.0]


def test_the_reason_is_cut_not_lost() -> None:
    def fails() -> tuple[int]:
        raise ValueError("ü" * 1000)

    _, last = on_all(places(2, 1), lambda place: place.sync.agree("acks", fails, 1))

    assert isinstance(last, RankFailure)
    assert last.reasons[0].startswith("ValueError: üüü")
    assert "\ufffd" not in last.reasons[0]


def test_an_answer_that_no_message_takes_fails_on_every_stage() -> None:
    results = on_all(places(3, 1), lambda place: place.sync.agree("acks", lambda: (2**63,), 1))

    for failure in results:
        assert isinstance(failure, RankFailure)
        assert failure.reasons[0].startswith("OverflowError")


def test_an_interrupt_of_the_first_stage_ends_the_others_too() -> None:
    ranks = places(2, 1)

    def interrupted() -> tuple[int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ranks[0].sync.agree("acks", interrupted, 1)
    with pytest.raises(RankFailure, match="KeyboardInterrupt"):
        ranks[1].sync.agree("acks", lambda: (0,), 1)


def test_after_an_agreed_failure_the_stages_are_still_in_step() -> None:
    def act(place: Place) -> list[int]:
        with pytest.raises(RankFailure):
            place.sync.agree("first", lambda: (1 // place.tp_rank,), 1)
        return place.sync.agree("second", lambda: (3 + place.tp_rank,), 1)

    assert on_all(places(3, 2), act) == [[3]] * 6
