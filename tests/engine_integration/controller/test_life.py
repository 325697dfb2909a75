"""The life of a prefix: device, host, store, and back, with every byte judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hicache_storage import open_store
from hicache_storage.engine_integration.controller import CachedTokens
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.radix import Tier
from hicache_storage.errors import InvariantError, TierFull
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.controller.engine import PAGE_TOKENS, Engine, prompt

LONG = prompt(*range(20), extra=1)


def other(number: int, pages: int = 20) -> list[int]:
    return prompt(*range(100 * number, 100 * number + pages), extra=1)


@pytest.fixture
def engine() -> Iterator[Engine]:
    opened = Engine(device_pages=32, host_pages=64)
    yield opened
    opened.close()


def options(**changes: object) -> TierOptions:
    return TierOptions(prefetch_threshold_tokens=4, load_back_threshold_tokens=0, **changes)  # type: ignore[arg-type]


def test_a_prompt_hits_the_device_the_second_time(engine: Engine) -> None:
    assert engine.generate(LONG).cached == CachedTokens()
    assert engine.generate(LONG).cached == CachedTokens(device=80)


def test_a_prompt_that_is_cached_to_its_end_leaves_a_token_to_compute(engine: Engine) -> None:
    whole = prompt(*range(8))
    engine.generate(whole)

    assert engine.generate(whole).cached.total == len(whole) - PAGE_TOKENS


def test_what_the_device_evicted_comes_back_from_the_host(engine: Engine) -> None:
    engine.generate(LONG)
    engine.generate(other(1))

    assert engine.generate(LONG).cached == CachedTokens(device=80 - 4 * 9, host=4 * 9)


def test_requests_of_different_scopes_share_nothing(engine: Engine) -> None:
    engine.generate(LONG)

    assert engine.generate(LONG, seed="ab" * 32).cached.total == 0


def test_two_requests_that_compute_the_same_pages_keep_one_copy(engine: Engine) -> None:
    for name in ("a", "b"):
        engine.controller.arrive(name, LONG)
        engine.start(name, LONG)
    for name in ("a", "b"):
        engine.compute(name, LONG[:40])

    first = engine.controller.commit("a", LONG[:40])
    second = engine.controller.commit("b", LONG[:40])

    assert first == second
    assert engine.device_slots.num_held == 10
    for name in ("a", "b"):
        engine.controller.abort(name)


def test_a_request_that_does_not_fit_leaves_everything_as_it_was(engine: Engine) -> None:
    engine.controller.arrive("big", other(2, pages=40))
    engine.start("big", other(2, pages=40))

    with pytest.raises(TierFull):
        engine.controller.allocate("big", 33)

    engine.check()
    engine.controller.abort("big")
    assert engine.device_slots.num_held == 0


def test_a_locked_prefix_is_never_evicted(engine: Engine) -> None:
    engine.generate(LONG)
    engine.controller.arrive("reader", LONG)
    engine.start("reader", LONG)

    assert engine.try_generate(other(3)) is None

    engine.compute("reader", LONG)
    engine.controller.finish("reader", LONG)


@pytest.mark.parametrize("call", ["arrive", "admit", "finish", "commit"])
def test_calls_out_of_order_raise_and_change_nothing(engine: Engine, call: str) -> None:
    engine.controller.arrive("known", LONG)
    calls: dict[str, Callable[[], object]] = {
        "arrive": lambda: engine.controller.arrive("known", LONG),
        "admit": lambda: engine.controller.admit("unknown"),
        "finish": lambda: engine.controller.finish("known", LONG),
        "commit": lambda: engine.controller.commit("known", LONG),
    }

    with pytest.raises(InvariantError, match="known"):
        calls[call]()

    engine.check()
    engine.controller.abort("known")


def test_a_new_server_on_the_same_store_restores_everything() -> None:
    store = MemoryStore()
    first = Engine(store=store)
    first.generate(LONG)
    first.close()
    second = Engine(store=store, options=options(prefetch_policy="wait_complete"))

    assert second.generate(LONG).cached == CachedTokens(store=80)
    second.close()


@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
def test_write_policies_differ_in_when_a_prefix_goes_down(policy: str) -> None:
    engine = Engine(device_pages=32, store=MemoryStore(), options=options(write_policy=policy))
    stored = []

    for _ in range(2):
        engine.generate(LONG)
        engine.controller.settle()
        stored.append(engine.counters["pages_written_back"])
    engine.generate(other(1))
    engine.controller.settle()
    stored.append(engine.counters["pages_written_back"])

    assert (
        stored[:2]
        == {
            "write_through": [20, 20],
            "write_through_selective": [0, 20],
            "write_back": [0, 0],
        }[policy]
    )
    assert (stored[2] > stored[1]) == (policy != "write_through_selective")
    engine.close()


def test_a_store_can_be_attached_and_detached_at_any_time() -> None:
    store = MemoryStore()
    engine = Engine()
    engine.generate(LONG)
    engine.attach(store)
    engine.generate(LONG)
    engine.controller.settle()
    held = sum(1 for _ in store.list_keys())
    engine.controller.detach()
    engine.generate(other(1))
    engine.controller.settle()

    assert held == 21
    assert sum(1 for _ in store.list_keys()) == held
    engine.attach(store)
    engine.generate(other(1))
    engine.controller.settle()
    assert sum(1 for _ in store.list_keys()) == 41
    engine.close()


def test_a_second_store_is_refused() -> None:
    engine = Engine(store=MemoryStore())

    with pytest.raises(InvariantError, match="detach it first"):
        engine.attach(MemoryStore())
    engine.close()


def test_a_flush_waits_for_no_request_but_says_which_is_in_its_way(engine: Engine) -> None:
    engine.controller.arrive("slow", LONG)

    with pytest.raises(InvariantError, match="slow"):
        engine.controller.flush()
    engine.controller.abort("slow")


def test_a_prefix_that_the_store_has_lost_is_stored_again_with_what_follows() -> None:
    store = MemoryStore()
    engine = Engine(device_pages=64, store=store)
    engine.generate(LONG)
    engine.controller.settle()
    for info in list(store.list_keys()):
        store.delete(info.key)
    longer = prompt(*range(30), extra=1)

    for _ in range(2):  # the first finds the gap, the second fills it
        engine.generate(longer)
        engine.controller.settle()

    reader = Engine(device_pages=64, store=store, options=options(prefetch_policy="wait_complete"))
    assert reader.generate(longer).cached == CachedTokens(store=120)
    engine.close()
    reader.close()


def test_a_prompt_in_pieces_keeps_its_start_in_a_store_that_evicts_by_use(tmp_path: Path) -> None:
    object_nbytes = 4096  # what a file of a page takes on the disk
    with open_store("file", {"path": tmp_path, "capacity_nbytes": 24 * object_nbytes}) as store:
        engine = Engine(device_pages=64, store=store)
        engine.generate(prompt(*range(40), extra=1), chunk=4 * PAGE_TOKENS)
        engine.controller.settle()
        reader = Engine(device_pages=64, store=store, options=options(prefetch_policy="wait_complete"))

        kept = reader.generate(prompt(*range(40), extra=1)).cached.store // PAGE_TOKENS

        assert kept >= 16
        engine.close()
        reader.close()


@pytest.mark.parametrize(
    ("tier", "cached"), [(Tier.DEVICE, CachedTokens(host=80)), (Tier.HOST, CachedTokens(device=80))], ids=str
)
def test_one_tier_is_flushed_and_the_other_keeps_what_it_has(engine: Engine, tier: Tier, cached: CachedTokens) -> None:
    engine.generate(LONG)

    engine.controller.flush(tier)

    engine.check()
    assert engine.generate(LONG).cached == cached


def test_a_flush_of_a_tier_spares_what_a_request_uses(engine: Engine) -> None:
    engine.generate(LONG)
    engine.controller.arrive("reader", LONG)
    engine.start("reader", LONG)

    engine.controller.flush(Tier.DEVICE)

    engine.compute("reader", LONG)
    engine.controller.finish("reader", LONG)


def test_a_flushed_store_is_empty_and_is_filled_again() -> None:
    store = MemoryStore()
    engine = Engine(store=store)
    engine.generate(LONG)
    engine.controller.settle()

    deleted = engine.controller.flush_store()

    assert deleted == 20
    assert list(store.list_keys()) == []
    engine.generate(LONG)
    engine.controller.settle()
    assert sum(1 for _ in store.list_keys()) == 21
    engine.close()
