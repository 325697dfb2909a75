"""Whichever agreement is lost, and whenever: what a rank held for it is free again once the rank has closed."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

import pytest

from hicache_storage.engine_integration.radix import Tier
from hicache_storage.errors import RankFailure, TierFull
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.controller.engine import Engine, prompt
from tests.engine_integration.controller.ranks import PROMPT, Ranks, options

pytestmark = pytest.mark.usefixtures("busy_threads")

LOST = {"backups": 0, "loads": 1, "probes": 2, "reads": 3, "writes": 4, "all": None}
"""What the ranks cannot agree on any more -> its group in `Ranks`."""

COPIES = ("backups", "loads", "all")
"""Without these nobody knows what is where; without the others all of them miss alike."""


def lose(ranks: Ranks, rank: int, lost: str) -> None:
    index = LOST[lost]
    if index is None:
        ranks.leave(rank)
    else:
        ranks.groups[index][rank].leave()


def judge_free(engine: Engine) -> None:
    """Judge that nobody holds anything but the tree, and that nothing is locked in it."""
    tree = engine.controller.tree
    engine.check()
    assert not tree.transfers.running
    assert tree.num_evictable(Tier.DEVICE) == tree.num_held(Tier.DEVICE)
    gone = tree.reset()
    engine.device_slots.free(gone.device_pages)
    engine.host_slots.free(gone.host_pages)
    assert (engine.device_slots.num_held, engine.host_slots.num_held) == (0, 0)


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize(("stages", "size"), [(1, 2), (2, 4), (3, 3)])
def test_what_was_held_for_an_agreement_that_is_lost_is_free_after_the_end(stages: int, size: int, lost: str) -> None:
    before = set(threading.enumerate())
    for seed in range(4):
        dice = random.Random(seed)
        at, gone = dice.randrange(6), dice.randrange(size)
        ranks = Ranks([MemoryStore() for _ in range(size)], options(store_batch_pages=2), stages=stages)

        def work(rank: int, ranks: Ranks = ranks, seed: int = seed, at: int = at, gone: int = gone) -> None:
            engine, own = ranks.engines[rank], random.Random(seed)
            for number in range(12):
                if (rank, number) == (gone, at):
                    lose(ranks, rank, lost)
                with suppress(TierFull):
                    engine.generate(prompt(*(10 * depth + own.randrange(3) for depth in range(own.randint(4, 9)))))
            engine.controller.settle()

        outcomes = ranks.outcomes(work)

        assert all(outcome is None or isinstance(outcome, RankFailure) for outcome in outcomes), outcomes
        assert (outcomes == [None] * size) or lost in COPIES, outcomes
        assert (outcomes != [None] * size) or lost != "all"
        for engine in ranks.engines:
            for number in range(engine._serial):
                engine.controller.abort(f"request {number + 1}")
        ends = ranks.outcomes(lambda rank, ranks=ranks: close(ranks.engines[rank]))  # type: ignore[misc]
        assert all(end is None or isinstance(end, RankFailure) for end in ends), ends
        for engine in ranks.engines:
            judge_free(engine)
    assert set(threading.enumerate()) <= before


def close(engine: Engine) -> None:
    engine.backup.run()
    engine.load.run()
    engine.controller.close()


@pytest.mark.parametrize("stages", [1, 2])
def test_a_rank_that_has_lost_another_one_hears_that_from_each_further_call(stages: int) -> None:
    ranks = Ranks([None, None], options(), stages=stages)
    for engine in ranks.engines:
        engine.backup.at_once = True
    ranks.groups[0][1].leave()

    def again_and_again(rank: int) -> list[str]:
        controller = ranks.engines[rank].controller
        with suppress(RankFailure):
            ranks.engines[rank].generate(PROMPT)
        calls = (controller.settle, controller.flush, controller.close)
        return [type(_raised(call)).__name__ for call in calls]

    assert ranks.all(again_and_again) == [["RankFailure"] * 3] * 2


def _raised(call: object) -> Exception | None:
    assert callable(call)
    try:
        call()
    except Exception as error:
        return error
    return None
