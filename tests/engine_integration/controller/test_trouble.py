"""What goes wrong is over when it is over: nothing hangs, nothing leaks, nothing that could be kept is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from hicache_storage.engine_integration.controller import CachedTokens
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.errors import HiCacheError, TierFull
from hicache_storage.testing.faults import Fault, FaultyStore, Gate
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.controller.engine import PAGE_TOKENS, Copies, Engine, Job, prompt
from tests.engine_integration.controller.flaky import FlakyStore

LONG = prompt(*range(40), extra=1)


def other(number: int, pages: int = 40) -> list[int]:
    return prompt(*range(1000 * number, 1000 * number + pages), extra=1)


def options(**changes: object) -> TierOptions:
    return TierOptions(prefetch_threshold_tokens=4, load_back_threshold_tokens=0, **changes)  # type: ignore[arg-type]


def intercept(copies: Copies, monkeypatch: pytest.MonkeyPatch, before: Callable[[], object]) -> None:
    """Call *before* at each submission of a copy."""
    submit = copies.submit

    def intercepted(device_pages: Sequence[int], host_pages: Sequence[int]) -> Job:
        before()
        return submit(device_pages, host_pages)

    monkeypatch.setattr(copies, "submit", intercepted)


@pytest.mark.parametrize("store", [None, MemoryStore(), FaultyStore(MemoryStore(), [Fault("write", "raise")])])
def test_a_host_smaller_than_what_the_device_gives_up_ends_no_allocation_in_a_circle(store: MemoryStore | None) -> None:
    engine = Engine(device_pages=64, host_pages=16, store=store, options=options(write_policy="write_back"))
    engine.generate(LONG)

    engine.generate(other(1))

    engine.close()


def test_without_a_store_the_end_of_a_prefix_goes_to_the_host_and_its_start_stays_on_the_device() -> None:
    engine = Engine(device_pages=64, host_pages=16, options=options(write_policy="write_back"))
    engine.generate(LONG)

    engine.generate(other(1, pages=35))

    assert engine.counters["pages_lost"] == 0
    assert engine.generate(LONG).cached == CachedTokens(device=28 * PAGE_TOKENS, host=12 * PAGE_TOKENS)
    engine.close()


def test_copies_that_all_fail_lose_pages_and_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(device_pages=64, host_pages=64, options=options(write_policy="write_back"))
    intercept(engine.backup, monkeypatch, lambda: setattr(engine.backup, "fail_next", True))
    engine.generate(LONG)

    engine.generate(other(1))

    assert engine.counters["pages_lost"] > 0
    assert engine.host_slots.num_held == 0
    engine.close()


def test_prefixes_that_wait_for_a_dead_store_copy_each_other_out_of_the_host_only_once() -> None:
    engine = Engine(device_pages=160, host_pages=16, store=FlakyStore(MemoryStore(), per_mille=1000))
    for number in range(3):
        engine.generate(other(number + 1))

    engine.controller.settle()

    copied = engine.counters["pages_backed_up"]
    for _ in range(10):
        engine.controller.step()
    engine.controller.settle()
    assert engine.counters["pages_backed_up"] == copied
    engine.close()


def test_a_prefix_longer_than_the_host_is_stored_after_others_had_to_wait_for_its_writes() -> None:
    engine = Engine(device_pages=64, host_pages=16, store=MemoryStore(), at_once=False)
    engine.generate(LONG)
    engine.generate(other(1))
    for _ in range(20):
        engine.backup.run()
        engine.controller.step()
        engine.controller.settle()

    assert engine.counters["pages_written_back"] == 80
    engine.close()


def test_a_load_behind_one_that_failed_fails_with_it_and_both_are_undone() -> None:
    engine = Engine(device_pages=64, host_pages=160)
    engine.generate(LONG)
    engine.generate(other(1, pages=62))
    engine.load.at_once = False
    engine.controller.arrive("short", LONG[: 20 * PAGE_TOKENS + 1])
    engine.load.fail_next = True
    engine.controller.admit("short")
    engine.controller.arrive("long", LONG)
    behind = engine.controller.admit("long").loads

    engine.load.run()
    engine.controller.step()

    assert len(behind) == 2
    assert engine.counters["load_failed"] == 2
    engine.controller.abort("short")
    engine.controller.abort("long")
    engine.controller.step()
    assert engine.generate(LONG).cached.total == len(LONG) - 1
    engine.close()


def test_a_request_whose_load_failed_is_told_and_the_next_one_is_served() -> None:
    engine = Engine(device_pages=64, host_pages=160)
    engine.generate(LONG)
    engine.generate(other(1, pages=62))
    engine.controller.arrive("unlucky", LONG)
    engine.load.fail_next = True

    with pytest.raises(HiCacheError):
        engine.start("unlucky", LONG)

    engine.controller.abort("unlucky")
    engine.controller.step()
    assert engine.generate(LONG).cached.total == len(LONG) - 1
    engine.close()


def test_pages_whose_load_failed_are_served_to_nobody_while_a_request_still_holds_them() -> None:
    engine = Engine(device_pages=64, host_pages=160)
    engine.generate(LONG)
    engine.generate(other(1, pages=62))
    engine.load.at_once = False
    engine.controller.arrive("holder", LONG)
    engine.load.fail_next = True
    there = engine.controller.admit("holder").cached.device
    engine.load.run()
    engine.controller.step()

    engine.controller.arrive("next", LONG)
    admission = engine.start("next", LONG)

    assert admission.cached == CachedTokens(device=there)
    for name in ("holder", "next"):
        engine.controller.abort(name)
    engine.close()


@pytest.mark.parametrize("direction", ["backup", "load"])
def test_a_copy_that_cannot_be_submitted_is_one_that_has_failed(
    direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(device_pages=64, host_pages=160)
    if direction == "load":
        engine.generate(LONG)
        engine.generate(other(1, pages=62))
    copies = {"backup": engine.backup, "load": engine.load}[direction]
    controller = engine.controller

    def refuse() -> None:
        raise RuntimeError("no thread")

    controller.arrive("first", LONG)
    with monkeypatch.context() as patch:
        intercept(copies, patch, refuse)
        admission = controller.admit("first")
        if direction == "backup":
            engine.compute("first", LONG)
            controller.commit("first", LONG)
    for load in admission.loads:
        with pytest.raises(HiCacheError, match="no thread"):
            load.layers.wait(0)
    engine.check()
    controller.abort("first")
    controller.settle()
    engine.check()

    assert engine.counters[f"{direction}_failed"] == 1

    assert not controller.tree.transfers.running
    assert engine.generate(LONG).cached.total == (len(LONG) - 1)
    engine.close()


def test_an_allocation_that_nothing_can_serve_evicts_nothing() -> None:
    engine = Engine(device_pages=64, host_pages=64)
    engine.generate(LONG)
    engine.controller.arrive("big", other(1, pages=70))
    engine.controller.admit("big")

    with pytest.raises(TierFull):
        engine.controller.allocate("big", 65)

    assert engine.device_slots.num_held == 40
    engine.controller.abort("big")
    engine.close()


def test_pages_of_an_earlier_time_without_a_store_go_to_it_at_their_next_use_in_write_back_too() -> None:
    engine = Engine(device_pages=64, host_pages=160, options=options(write_policy="write_back"))
    engine.generate(LONG)
    engine.generate(other(1, pages=63))
    store = MemoryStore()
    engine.attach(store)

    engine.generate(LONG)
    engine.controller.settle()

    engine.close()
    reader = Engine(store=store, options=options(prefetch_policy="wait_complete"))
    assert reader.generate(LONG).cached.store == len(LONG) - 1
    reader.close()


def test_of_a_prompt_longer_than_the_prefetch_budget_the_start_is_fetched() -> None:
    store = MemoryStore()
    first = Engine(store=store)
    first.generate(LONG)
    first.close()
    second = Engine(host_pages=32, store=store, options=options(prefetch_policy="wait_complete"))

    assert second.generate(LONG).cached == CachedTokens(store=16 * PAGE_TOKENS)
    second.close()


@pytest.mark.parametrize("operation", ["write", "read", "stat"])
def test_a_store_that_cancels_costs_one_operation_and_no_thread(operation: str) -> None:
    inner = MemoryStore()
    first = Engine(store=inner)
    first.generate(LONG)
    first.close()
    store = _Cancelling(inner, operation)
    second = Engine(store=store, options=options(prefetch_policy="wait_complete"))

    second.generate(LONG)
    second.generate(other(1))
    second.controller.settle()
    store.operation = ""
    second.controller.flush()

    assert second.generate(LONG).cached.store == len(LONG) - 1
    second.close()


def test_a_failed_write_is_tried_again_also_when_its_node_was_joined_with_the_one_below() -> None:
    gate = Gate()
    script = [Fault("write", "delay", nth=1, gate=gate), Fault("write", "raise", nth=2)]
    store = FaultyStore(MemoryStore(), script)
    engine = Engine(device_pages=45, host_pages=96, store=store, options=options(prefetch_policy="best_effort"))
    engine.generate(LONG, chunk=10 * PAGE_TOKENS)
    gate.open()
    engine.controller.settle()
    engine.generate(other(1, pages=44))

    for _ in range(65):
        engine.controller.step()
    engine.controller.settle()

    engine.close()
    reader = Engine(store=store, options=options(prefetch_policy="wait_complete"))
    assert reader.generate(LONG).cached.store == len(LONG) - 1
    reader.close()


class _Cancelling(FlakyStore):
    """Raises what no store should, and what asyncio raises all the same."""

    def __init__(self, inner: MemoryStore, operation: str) -> None:
        super().__init__(inner)
        self.operation = operation

    def _draw(self, operation: str, key: str) -> int | None:
        if operation == self.operation:
            raise asyncio.CancelledError("planted")
        return None
