"""Anything at any time, in every policy, with faults everywhere: the books are exact and every byte is right."""

from __future__ import annotations

import random
from itertools import product

import pytest

from hicache_storage.engine_integration.options import (
    EVICTION_POLICIES,
    PREFETCH_POLICIES,
    WRITE_POLICIES,
    EvictionPolicy,
    PrefetchPolicy,
    TierOptions,
    WritePolicy,
)
from hicache_storage.layout import ObjectKey, page_hashes
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.controller.engine import PAGE_NBYTES, PAGE_TOKENS, Engine
from tests.engine_integration.controller.flaky import FlakyStore
from tests.engine_integration.controller.walk import Running, Walk

pytestmark = pytest.mark.usefixtures("busy_threads")

STEPS = 10_000
COMBINATIONS = list(product(WRITE_POLICIES, PREFETCH_POLICIES, EVICTION_POLICIES))


def walk_of(seed: int, options: TierOptions, store: FlakyStore, *, pages: tuple[int, int] = (26, 22)) -> Walk:
    device, host = pages
    engine = Engine(device_pages=device, host_pages=host, options=options, at_once=False, clock=lambda: walk.now_s)
    walk = Walk(engine, seed, store, own=random.Random(seed + 1))
    engine.attach(store)
    return walk


@pytest.mark.parametrize(("write", "prefetch", "eviction"), COMBINATIONS)
def test_whatever_happens_the_books_add_up_and_the_bytes_are_right(
    write: WritePolicy, prefetch: PrefetchPolicy, eviction: EvictionPolicy
) -> None:
    number = COMBINATIONS.index((write, prefetch, eviction))
    options = TierOptions(
        write_policy=write,
        prefetch_policy=prefetch,
        eviction_policy=eviction,
        host_eviction_policy=EVICTION_POLICIES[number % 3],
        prefetch_threshold_tokens=4 * (number % 3),
        load_back_threshold_tokens=8 * (number % 2),
        store_batch_pages=3,
        store_backpressure=number % 5 > 0,
        store_retries=number % 4,
        prefetch_timeout_base_s=0.4,
        prefetch_host_fraction=(0.5, 1.0)[number % 2],
    )
    store = FlakyStore(MemoryStore(), seed=number)
    walk = walk_of(number, options, store)

    for step in range(-(-STEPS // len(COMBINATIONS))):
        store.per_mille = (0, 20, 0, 200, 1000)[step // 40 % 5]
        walk.fault_per_mille = (0, 20, 200)[step // 50 % 3]
        walk.step()
    walk.close()

    for info in store.list_keys():
        if (key := _page_hash(info.key)) is not None:
            body = bytearray(PAGE_NBYTES)
            assert store.inner.read_into(info.key, 0, [body])
            assert body == key.encode()
            assert key in walk.computed


@pytest.mark.parametrize("seed", range(6))
def test_where_there_is_room_for_everything_all_that_was_computed_is_found(seed: int) -> None:
    options = TierOptions(
        prefetch_policy="wait_complete",
        prefetch_threshold_tokens=0,
        load_back_threshold_tokens=0,
        prefetch_host_fraction=1.0,
    )
    walk = walk_of(seed, options, FlakyStore(MemoryStore()), pages=(600, 600))
    walk.keeps_all = True
    del walk.actions[walk.reattach], walk.actions[walk.flush_store]

    for _ in range(300):
        walk.step()
    walk.flush()
    for branch in range(8):
        request = Running(walk.any_prompt(branch), None)
        expected = walk.most_pages(request) * PAGE_TOKENS
        assert walk.engine.generate(request.tokens).cached.total == expected
        walk.committed.update(page_hashes(request.tokens, PAGE_TOKENS))
    walk.close()


def _page_hash(key: str) -> str | None:
    return ObjectKey.parse(key).page_hash if not key.startswith("namespace") else None
