"""Every rank failing at every step of an operation: the operation ends alike on all of them, and nobody waits for ever.

Field faults F9 (a rank that has nothing to say, or fails, skips the collective), F10 (hits differ between ranks) and
F28 (stages have room for different numbers of tokens).
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from hicache_storage.engine_integration.controller import CachedTokens, Controller, Pools
from hicache_storage.engine_integration.parallel.ranks import Ranks as Peers
from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.engine_integration.radix import Tier
from hicache_storage.engine_integration.tiers import HostMemory, HostSize, agree_host_pages
from hicache_storage.engine_integration.tiers.slots import PageAllocator
from hicache_storage.errors import HiCacheError, InvariantError, RankFailure, StoreUnavailable, TierFull
from hicache_storage.testing.faults import Fault, FaultyStore
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.controller.engine import PAGE_TOKENS, Engine, prompt
from tests.engine_integration.controller.ranks import HASHES, PROMPT, Ranks, options
from tests.engine_integration.controller.walk import picture
from tests.engine_integration.parallel.pipeline import PATIENCE_S, on_all, places

pytestmark = pytest.mark.usefixtures("busy_threads")

SHAPES = [(1, 2), (2, 2), (2, 4), (3, 3), (4, 4)]
"""(stages, ranks)"""


def raising(*_: object) -> object:
    raise HiCacheError("planted")


def submit_raises(engine: Engine, _: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, left = engine.backup.submit, [raising]

    def once(device_pages: Sequence[int], host_pages: Sequence[int]) -> object:
        return left.pop()() if left else submit(device_pages, host_pages)

    monkeypatch.setattr(engine.backup, "submit", once)


def copy_fails(engine: Engine, _: FaultyStore, __: pytest.MonkeyPatch) -> None:
    engine.backup.fail_next = True


def store_fails(op: str) -> Callable[[Engine, FaultyStore, pytest.MonkeyPatch], None]:
    def plant(_: Engine, store: FaultyStore, __: pytest.MonkeyPatch) -> None:
        store.rescript([Fault(op, "raise", nth=nth, error=StoreUnavailable("planted")) for nth in range(1, 9)])  # type: ignore[arg-type]

    return plant


DOWN = {"submit": submit_raises, "copy": copy_fails, "write": store_fails("write")}
UP = {"stat": store_fails("stat"), "read": store_fails("read")}


def ranks_of(stages: int, size: int) -> tuple[Ranks, list[FaultyStore]]:
    stores = [FaultyStore(MemoryStore()) for _ in range(size)]
    chosen = options(prefetch_policy="wait_complete", store_batch_pages=2)
    return Ranks(stores, chosen, stages=stages), stores


def judge_equal(ranks: Ranks) -> None:
    """Judge that, once nothing is on its way, every rank has the same tree and books, and has been to every collective as often."""
    ranks.all(lambda rank: ranks.engines[rank].controller.settle())
    assert len({picture(engine) for engine in ranks.engines}) == 1
    for engine in ranks.engines:
        engine.check()
    for group in ranks.groups:
        assert len(set(group[0]._meeting._arrivals)) == 1


@pytest.mark.parametrize("step", DOWN)
@pytest.mark.parametrize(("stages", "size"), SHAPES)
def test_f9_what_one_rank_cannot_bring_down_is_given_up_on_all(
    monkeypatch: pytest.MonkeyPatch, stages: int, size: int, step: str
) -> None:
    """A rank whose host copy cannot begin, or fails, or whose store raises."""
    for failing in range(size):
        ranks, stores = ranks_of(stages, size)
        DOWN[step](ranks.engines[failing], stores[failing], monkeypatch)

        ranks.generate()
        judge_equal(ranks)
        held = 8 if step == "write" else 0
        assert [engine.host_slots.num_held for engine in ranks.engines] == [held] * size
        assert [engine.counters["pages_written_back"] for engine in ranks.engines] == [0] * size
        assert ranks.generate() == [CachedTokens(device=8 * PAGE_TOKENS)] * size
        ranks.restart()
        judge_equal(ranks)
        ranks.close()


@pytest.mark.parametrize("step", UP)
@pytest.mark.parametrize(("stages", "size"), SHAPES)
def test_f9_what_one_rank_cannot_fetch_is_missed_on_all(
    monkeypatch: pytest.MonkeyPatch, stages: int, size: int, step: str
) -> None:
    for failing in range(size):
        ranks, stores = ranks_of(stages, size)
        ranks.generate()
        ranks.restart()
        UP[step](ranks.engines[failing], stores[failing], monkeypatch)

        assert ranks.generate() == [CachedTokens()] * size

        judge_equal(ranks)
        ranks.close()


@pytest.mark.parametrize("step", ["submit", "copy"])
@pytest.mark.parametrize(("stages", "size"), SHAPES)
def test_f9_what_one_rank_cannot_load_is_given_up_on_all(
    monkeypatch: pytest.MonkeyPatch, stages: int, size: int, step: str
) -> None:
    """The wait for a layer raises on that rank alone; then every rank aborts the request and has its pages back."""
    for failing in range(size):
        ranks, _ = ranks_of(stages, size)
        ranks.generate()
        ranks.all(lambda rank, ranks=ranks: ranks.engines[rank].controller.flush(Tier.DEVICE))  # type: ignore[misc]
        if step == "submit":
            monkeypatch.setattr(ranks.engines[failing].load, "submit", raising)
        ranks.engines[failing].load.fail_next = True

        def load(rank: int, ranks: Ranks = ranks) -> bool:
            controller = ranks.engines[rank].controller
            controller.arrive("r", PROMPT)
            assert controller.ready("r")
            (job,) = controller.admit("r").loads
            with suppress(HiCacheError):
                job.layers.wait(0)
            controller.abort("r")
            controller.settle()
            return job.error is None

        assert ranks.all(load) == [rank != failing for rank in range(size)]
        judge_equal(ranks)
        assert [engine.device_slots.num_held for engine in ranks.engines] == [0] * size
        assert [engine.counters["load_failed"] for engine in ranks.engines] == [1] * size
        ranks.close()


@pytest.mark.parametrize(("stages", "size"), [(1, 4), (2, 4), (4, 4)])
def test_f9_a_rank_whose_own_copies_run_on_takes_part_all_the_same(stages: int, size: int) -> None:
    ranks, _ = ranks_of(stages, size)

    def steps(rank: int) -> None:
        engine = ranks.engines[rank]
        engine.generate(PROMPT)
        if rank != 1:
            engine.backup.run()
        for _ in range(10):
            engine.controller.step()

    ranks.all(steps)

    assert [engine.counters["pages_backed_up"] for engine in ranks.engines] == [0] * size
    judge_equal(ranks)
    ranks.close()


def test_f9_a_request_that_one_rank_does_not_know_costs_no_rank_a_collective() -> None:
    ranks, _ = ranks_of(2, 4)

    def act(rank: int) -> None:
        controller = ranks.engines[rank].controller
        if rank == 1:
            controller.abort("of another one")
            with pytest.raises(InvariantError):
                controller.ready("of another one")
        controller.step()

    ranks.all(act)
    judge_equal(ranks)
    ranks.close()


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize(("stages", "size"), SHAPES)
def test_f9_a_rank_that_is_gone_is_missed_by_all_others(stages: int, size: int, at: int) -> None:
    """Whenever it goes, every other rank raises RankFailure before long; whoever waits for it names it."""
    for gone in range(size):
        ranks = Ranks([MemoryStore() for _ in range(size)], options(prefetch_policy="best_effort"), stages=stages)

        def work(rank: int, ranks: Ranks = ranks, gone: int = gone) -> None:
            for number in range(60):
                if (rank, number) == (gone, at):
                    raise TierFull("gone")
                with suppress(TierFull):
                    ranks.engines[rank].generate(prompt(number, 70, 71))

        outcomes = ranks.outcomes(work)

        others = [outcome for rank, outcome in enumerate(outcomes) if rank != gone]
        assert all(isinstance(outcome, RankFailure) for outcome in others), outcomes
        assert any(gone in outcome.reasons for outcome in others if isinstance(outcome, RankFailure))
        ranks.give_up()


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("when", ["before the lookup", "between lookup and read"])
@pytest.mark.parametrize("short", range(4))
def test_f10_every_rank_hits_what_all_ranks_have(stages: int, when: str, short: int) -> None:
    ranks, stores = ranks_of(stages, 4)
    ranks.generate()
    ranks.restart()
    (key,) = (info.key for info in stores[short].list_keys() if info.key.startswith(HASHES[5]))
    if when == "before the lookup":
        stores[short].delete(key)
    else:
        stores[short].rescript([Fault("read", "miss", key=key)])
    ranks.all(lambda rank: ranks.engines[rank].controller.arrive("r", PROMPT))

    def fetched(rank: int) -> CachedTokens:
        engine = ranks.engines[rank]
        while not engine.controller.ready("r"):
            engine.controller.step()
        assert engine.host_slots.num_held == 5
        return engine.start("r", PROMPT).cached

    assert ranks.all(fetched) == [CachedTokens(store=5 * PAGE_TOKENS)] * 4
    ranks.all(lambda rank: ranks.engines[rank].controller.abort("r"))
    judge_equal(ranks)
    ranks.close()


STAGE_LAYERS = (31, 29)
LAYER_PAGE_NBYTES = 400


def test_f28_stages_of_31_and_29_layers_with_equal_bytes_have_room_for_the_same_prompts() -> None:
    groups = ThreadGroup.of(2, timeout_s=PATIENCE_S)
    size, memory = HostSize(nbytes=10**6, reserve_nbytes=0, ranks=2), HostMemory(10**9, 10**9, "test")

    def own_pages(stage: int) -> int:
        return size.num_pages(STAGE_LAYERS[stage] * LAYER_PAGE_NBYTES, device_pages=26, memory=memory)

    agreed = on_all(
        places(2, 1), lambda place: agree_host_pages(groups[place.rank], PAGE_TOKENS, lambda: own_pages(place.rank))
    )

    assert [own_pages(stage) for stage in range(2)] == [80, 86]
    assert agreed == [80, 80]
    ranks = Ranks([None, None], options(), stages=2, at_once=True, pages=(26, 80))

    def fill(rank: int) -> list[object]:
        engine, rng = ranks.engines[rank], random.Random(28)
        served: list[object] = []
        for _ in range(1000):
            found = engine.try_generate(prompt(*(rng.randrange(40) for _ in range(rng.randint(1, 30)))))
            served.append(found and (found.cached, engine.host_slots.num_free))
        return served

    first, second = ranks.all(fill)
    assert first == second
    assert ranks.engines[0].counters["host_pages_evicted"] > 0
    ranks.close()


@pytest.mark.parametrize(("stages", "size"), [(1, 2), (2, 2), (2, 4)])
def test_f28_tiers_with_room_for_different_numbers_of_pages_are_refused_and_both_numbers_named(
    stages: int, size: int
) -> None:
    ranks = places(stages, size // stages)

    def build(place_rank: int) -> Controller:
        pools = Pools(PageAllocator(26), PageAllocator(86 if place_rank == size - 1 else 80))
        return Controller(PAGE_TOKENS, pools, ranks=Peers(ranks[place_rank].sync))

    last = on_all(ranks, lambda place: build(place.rank))[-1]

    assert isinstance(last, RankFailure)
    assert sorted(last.reasons) == [size - 1 - size // stages if stages > 1 else 0, size - 1]
    assert ("80" in str(last), "86" in str(last)) == (True, True)


@pytest.mark.slow
def test_twenty_thousand_steps_leave_nothing_behind() -> None:
    ranks = Ranks([MemoryStore() for _ in range(2)], options(), stages=2, at_once=True)

    def steps(rank: int, count: int) -> None:
        for number in range(count):
            if number % 100 == 0:
                ranks.engines[rank].generate(PROMPT)
            ranks.engines[rank].controller.step()

    ranks.all(lambda rank: steps(rank, 500))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        ranks.all(lambda rank: steps(rank, 20_000))
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert after - before < 100_000
    assert peak - before < 1_000_000
    ranks.close()
