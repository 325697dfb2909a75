"""Pipeline stages through the controller: they make their calls each in its own time, and do what the first one did.

A stage's calls are made from the test's own thread wherever nothing may wait for another stage.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from hicache_storage.engine_integration.controller import CachedTokens
from hicache_storage.engine_integration.store_tier.acks import AckQueue
from hicache_storage.errors import RankFailure
from hicache_storage.testing.faults import Fault, FaultyStore, Gate
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.controller.engine import PAGE_TOKENS, Engine, prompt
from tests.engine_integration.controller.ranks import HASHES, PROMPT, Ranks, options
from tests.engine_integration.controller.walk import picture
from tests.engine_integration.parallel.pipeline import PATIENCE_S

pytestmark = pytest.mark.usefixtures("busy_threads")


def pictures(ranks: Ranks) -> list[tuple[object, ...]]:
    return [picture(engine) for engine in ranks.engines]


def await_acks(queue: AckQueue[object], count: int) -> None:
    """Return once *queue* holds so many acknowledgements."""
    with queue._lock:
        assert queue._lock.wait_for(lambda: len(queue._acks) >= count, PATIENCE_S)


def progress_of(engine: Engine) -> AckQueue[object]:
    link = engine.controller._link
    assert link is not None
    return link.fetches._prefetcher.progress  # type: ignore[return-value]  # whatever it holds


def hits_of(engine: Engine) -> AckQueue[object]:
    link = engine.controller._link
    assert link is not None
    return link.fetches._prefetcher.probed  # type: ignore[return-value]  # whatever it holds


def backups_of(engine: Engine) -> AckQueue[object]:
    return engine.controller._backups._ended._results  # type: ignore[attr-defined, no-any-return]  # there are more ranks


def test_f8_the_first_stage_stops_after_four_pages_while_the_second_holds_six_and_both_use_four() -> None:
    """The article's case. The second stage makes its calls after the first has made all of its own."""
    stores = [FaultyStore(MemoryStore()) for _ in range(2)]
    now = [0.0, 0.0]
    clocks = [lambda: now[0], lambda: now[1]]
    ranks = Ranks(stores, options(prefetch_timeout_base_s=1.0, store_batch_pages=2), clocks, stages=2, pages=(64, 64))
    ranks.generate()
    ranks.restart()
    gates = [Gate(), Gate()]  # hold the fifth page back on both, so that the first stops while it is being read
    for store, gate in zip(stores, gates, strict=True):
        (late,) = (info.key for info in store.list_keys() if info.key.startswith(HASHES[4]))
        store.rescript([Fault("read", "delay", key=late, gate=gate)])
    first, second = ranks.engines

    def arrive(engine: Engine) -> None:
        engine.controller.arrive("r", PROMPT)
        await_acks(hits_of(engine), 1)
        engine.controller.step()

    def go_on(engine: Engine) -> CachedTokens:
        assert not engine.controller.ready("r")
        engine.controller.step()
        now[0] = 2.0
        assert engine.controller.ready("r")
        return engine.start("r", PROMPT).cached

    ranks.all(lambda rank: arrive(ranks.engines[rank]))
    await_acks(progress_of(first), 2)
    assert gates[0].entered.wait(PATIENCE_S)
    now[1] = 99.0  # of no account: the first stage's clock decides
    assert go_on(first) == CachedTokens(store=4 * PAGE_TOKENS)
    for gate in gates:
        gate.open()
    await_acks(progress_of(second), 3)
    now[0] = 0.0

    assert go_on(second) == CachedTokens(store=4 * PAGE_TOKENS)
    assert progress_of(second).ready() == 1
    assert pictures(ranks)[0] == pictures(ranks)[1]

    await_acks(progress_of(first), 1)
    for engine in ranks.engines:
        engine.controller.step()
    assert [engine.counters["pages_prefetched"] for engine in ranks.engines] == [6, 6]
    ranks.all(lambda rank: ranks.engines[rank].controller.abort("r"))
    ranks.close()


def test_f8_a_stage_does_all_of_its_work_before_a_later_one_has_begun() -> None:
    """No barrier: one thread makes every call of the first stage, then every call of the second, then of the third."""
    ranks = Ranks([MemoryStore() for _ in range(3)], options(prefetch_policy="best_effort"), stages=3, pages=(64, 64))

    for engine in ranks.engines:
        for number in range(8):
            engine.generate(prompt(1, 2, 10 + number))

    assert len(set(pictures(ranks))) == 1
    ranks.close()


class SecondHeldBack:
    """Two stages that have backed up a prompt. The first has taken that; the second will hear of it when it is `told`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranks = Ranks([None, None], options(), stages=2)
        self.told = threading.Event()
        backups = self.ranks.groups[0][1]
        gather = backups.all_gather

        def told_late(step: str, values: Sequence[int]) -> list[list[int]]:
            everyone = gather(step, values)
            assert self.told.wait(PATIENCE_S)
            return everyone

        monkeypatch.setattr(backups, "all_gather", told_late)
        for engine in self.ranks.engines:
            engine.controller.arrive("r", PROMPT)
            engine.start("r", PROMPT)
            engine.compute("r", PROMPT)
            engine.controller.finish("r", PROMPT)
            engine.backup.run()
        first = self.ranks.engines[0]
        await_acks(backups_of(first), 1)
        first.controller.step()
        assert first.counters["pages_backed_up"] == 8


def test_f8_a_later_stage_waits_for_a_backup_that_the_first_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    held = SecondHeldBack(monkeypatch)
    link, second, heard = held.ranks.places[1].link, held.ranks.engines[1], threading.Event()
    receive = link.receive

    def receive_and_tell(step: str) -> list[int]:
        words = receive(step)
        heard.set()
        return words

    monkeypatch.setattr(link, "receive", receive_and_tell)
    with ThreadPoolExecutor(1) as stage:
        step = stage.submit(second.controller.step)
        assert heard.wait(PATIENCE_S)
        held.told.set()
        step.result()

    assert second.counters["pages_backed_up"] == 8
    assert len(set(pictures(held.ranks))) == 1
    held.ranks.close()


def test_f8_a_later_stage_that_polls_alone_parts_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault itself, planted."""
    held = SecondHeldBack(monkeypatch)
    monkeypatch.setattr(held.ranks.places[1].sync, "agree", lambda _, counts, __: list(counts()))

    held.ranks.engines[1].controller.step()

    assert len(set(pictures(held.ranks))) == 2
    held.told.set()
    held.ranks.give_up()


def test_a_later_stage_that_never_gets_what_the_first_has_taken_fails_and_says_which() -> None:
    ranks = Ranks([MemoryStore() for _ in range(2)], options(), stages=2, patience_s=0.2)
    first, second = ranks.engines
    for engine in ranks.engines:
        engine.controller.arrive("r", PROMPT)
    await_acks(hits_of(first), 1)
    await_acks(hits_of(second), 1)
    hits_of(second).take(1)
    first.controller.step()

    with pytest.raises(RankFailure, match=r"rank 1: 1 L3 hits asked for, 0 ready after 0\.2 s"):
        second.controller.step()

    ranks.give_up()


def run_alone(seed: int, ranks: Ranks) -> list[list[object]]:
    """Send the same prompts through every stage, whose copies end when its own dice say so; return all pictures."""
    rng = random.Random(seed)
    prompts = [prompt(*(10 * depth + rng.randrange(2) for depth in range(rng.randint(1, 6)))) for _ in range(12)]

    def walk(rank: int) -> list[object]:
        engine, own = ranks.engines[rank], random.Random(seed * 10 + rank)
        seen: list[object] = []
        for tokens in prompts:
            engine.generate(tokens)
            engine.backup.run(own.randint(0, len(engine.backup.jobs)))
            seen.append(picture(engine))
        return seen

    return [list(one) for one in ranks.all(walk) if isinstance(one, list)]


@pytest.mark.parametrize("block", range(8))
def test_f8_trees_of_two_stages_are_equal_after_every_step_whenever_copies_end(block: int) -> None:
    for seed in range(25 * block, 25 * block + 25):
        ranks = Ranks([None, None], options(), stages=2)
        first, second = run_alone(seed, ranks)
        assert first == second
        ranks.close()


@pytest.mark.parametrize("odd", range(4))
def test_an_acknowledgement_that_is_another_one_fails_although_the_counts_are_equal(
    monkeypatch: pytest.MonkeyPatch, odd: int
) -> None:
    ranks = Ranks([None] * 4, options(), stages=2)
    ended = ranks.engines[odd].controller._backups._ended
    monkeypatch.setattr(ended, "take", lambda take=ended.take: not take())

    def work(rank: int) -> None:
        engine = ranks.engines[rank]
        engine.generate(PROMPT)
        engine.controller._backups.settle()
        engine.controller.step()

    outcomes = ranks.outcomes(work)

    for rank in range(4) if odd < 2 else [odd]:
        failure = outcomes[rank]
        assert isinstance(failure, RankFailure)
        assert "has taken other entries" in failure.reasons[odd]
    ranks.give_up()
