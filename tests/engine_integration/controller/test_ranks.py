"""Ranks as threads that make the same calls: whatever differs between them, they decide alike."""

from __future__ import annotations

import random

import pytest

from hicache_storage.engine_integration.controller import CachedTokens
from hicache_storage.engine_integration.options import PREFETCH_POLICIES, WRITE_POLICIES, WritePolicy
from hicache_storage.testing.faults import Fault, FaultyStore, Gate
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.controller.engine import PAGE_TOKENS
from tests.engine_integration.controller.flaky import FlakyStore
from tests.engine_integration.controller.ranks import HASHES, PROMPT, Ranks, options
from tests.engine_integration.controller.walk import Walk

pytestmark = pytest.mark.usefixtures("busy_threads")


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize(("stages", "size"), [(1, 2), (1, 4), (2, 4), (4, 4)])
@pytest.mark.parametrize("write", WRITE_POLICIES)
def test_ranks_that_differ_in_everything_but_their_calls_have_the_same_tree(
    stages: int, size: int, write: WritePolicy, is_shared: bool
) -> None:
    number = size + stages + 10 * WRITE_POLICIES.index(write) + 100 * is_shared
    chosen = options(
        write_policy=write,
        prefetch_policy=PREFETCH_POLICIES[number % 3],
        store_batch_pages=2,
        prefetch_timeout_base_s=0.4,
    )
    inner = MemoryStore()
    stores = [FlakyStore(inner if is_shared else MemoryStore(), seed=rank) for rank in range(size)]
    walks: list[Walk] = []
    clocks = [lambda rank=rank: walks[rank].now_s * (1 + rank / 10) for rank in range(size)]
    ranks = Ranks(stores, chosen, clocks, stages=stages)
    walks += [
        Walk(engine, number, stores[rank], own=random.Random(rank), group=ranks.groups[5][rank])
        for rank, engine in enumerate(ranks.engines)
    ]

    def walk(rank: int) -> None:
        for step in range(300):
            stores[rank].per_mille = (0, 20, 200)[(step // 40 + rank) % 3]
            walks[rank].fault_per_mille = (0, 20)[(step // 50 + rank) % 2]
            walks[rank].step()
            walks[rank].compare()
        walks[rank].close()

    ranks.all(walk)


@pytest.mark.parametrize("when", ["before the lookup", "between lookup and read"])
def test_every_rank_hits_what_all_ranks_have(when: str) -> None:
    stores = [FaultyStore(MemoryStore()) for _ in range(4)]
    ranks = Ranks(list(stores), options(prefetch_policy="wait_complete"))
    ranks.generate()
    ranks.restart()
    (key,) = (info.key for info in stores[2].list_keys() if info.key.startswith(HASHES[5]))
    if when == "before the lookup":
        stores[2].delete(key)
    else:
        stores[2].rescript([Fault("read", "miss", key=key)])

    assert ranks.generate() == [CachedTokens(store=5 * PAGE_TOKENS)] * 4
    ranks.close()


def test_progress_counts_what_the_slowest_rank_has() -> None:
    stores = [FaultyStore(MemoryStore()) for _ in range(2)]
    ranks = Ranks(list(stores), options(prefetch_policy="wait_complete", store_batch_pages=2))
    ranks.generate()
    ranks.restart()
    gate = Gate()
    (late,) = (info.key for info in stores[1].list_keys() if info.key.startswith(HASHES[4]))
    stores[1].rescript([Fault("read", "delay", key=late, gate=gate)])
    ranks.all(lambda rank: ranks.engines[rank].controller.arrive("r", PROMPT))

    while not gate.entered.is_set() or ranks.engines[0].counters["pages_prefetched"] < 4:
        ranks.all(lambda rank: ranks.engines[rank].controller.step())

    assert [engine.counters["pages_prefetched"] for engine in ranks.engines] == [4, 4]
    assert ranks.all(lambda rank: ranks.engines[rank].controller.ready("r")) == [False, False]
    gate.open()
    ranks.all(lambda rank: ranks.engines[rank].controller.settle())
    assert [engine.counters["pages_prefetched"] for engine in ranks.engines] == [8, 8]
    ranks.all(lambda rank: ranks.engines[rank].controller.abort("r"))
    ranks.close()


def test_the_store_of_one_rank_is_dead_and_all_ranks_miss_alike() -> None:
    stores = [FlakyStore(MemoryStore(), seed=rank) for rank in range(4)]
    ranks = Ranks(list(stores), options(prefetch_policy="wait_complete"))
    ranks.generate()
    ranks.restart()
    stores[3].per_mille = 1000

    assert ranks.generate() == [CachedTokens()] * 4

    ranks.restart()
    stores[3].per_mille = 0
    assert ranks.generate() == [CachedTokens(store=8 * PAGE_TOKENS)] * 4
    ranks.close()


def test_a_request_times_out_on_all_ranks_when_it_does_on_the_first() -> None:
    stores = [FaultyStore(MemoryStore()) for _ in range(2)]
    now = [0.0, 0.0]
    ranks = Ranks(
        list(stores),
        options(prefetch_timeout_base_s=1.0),
        [lambda rank=rank: now[rank] for rank in range(2)],  # type: ignore[misc]
    )
    ranks.generate()
    ranks.restart()
    gate = Gate()
    stores[1].rescript([Fault("read", "delay", gate=gate)])
    ranks.all(lambda rank: ranks.engines[rank].controller.arrive("r", PROMPT))

    assert ranks.all(lambda rank: ranks.engines[rank].controller.ready("r")) == [False, False]
    now[0] = 2.0
    assert ranks.all(lambda rank: ranks.engines[rank].controller.ready("r")) == [True, True]

    gate.open()
    ranks.all(lambda rank: ranks.engines[rank].controller.abort("r"))
    ranks.close()
