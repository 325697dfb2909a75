"""Pages on their way: never given to somebody else, never counted before they are there (F12, F14, F23)."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from hicache_storage.engine_integration.controller import CachedTokens
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.radix import Key
from hicache_storage.layout import page_hashes
from hicache_storage.store import ObjectStore
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import ReadableBuffer, WriteResult
from tests.engine_integration.controller.engine import PAGE_TOKENS, Engine, prompt
from tests.engine_integration.controller.flaky import FAULTS, FlakyStore, planted

ABCD = prompt(0, 1, 2, 3, extra=1)


def options(**changes: object) -> TierOptions:
    return TierOptions(prefetch_threshold_tokens=4, load_back_threshold_tokens=0, **changes)  # type: ignore[arg-type]


def other(number: int, pages: int) -> list[int]:
    return prompt(*range(1000 * number, 1000 * number + pages), extra=1)


def stored(store: ObjectStore) -> set[str]:
    return {info.key[:64] for info in store.list_keys() if not info.key.startswith("namespace")}


def test_host_pages_that_a_backup_fills_are_nobody_elses_and_count_only_once_filled() -> None:
    engine = Engine(device_pages=64, host_pages=8, at_once=False)
    engine.generate(ABCD)
    engine.generate(other(1, 4))
    filling = engine.controller.tree.transfers.running.copy()

    engine.generate(other(2, 8))

    assert len(filling) == 2
    assert filling.keys() == engine.controller.tree.transfers.running.keys()
    assert engine.counters["pages_backed_up"] == 0
    engine.backup.run()
    engine.controller.step()
    assert engine.counters["pages_backed_up"] == 8
    hosts = [engine.controller.tree.match(_key(engine, tokens)) for tokens in (ABCD, other(1, 4))]
    assert [match.num_pages for match in hosts] == [4, 4]
    engine.close()


def test_host_pages_that_a_load_reads_outlive_a_host_that_is_full() -> None:
    engine = Engine(device_pages=16, host_pages=20)
    engine.generate(ABCD)
    engine.generate(other(1, 11))
    engine.generate(other(2, 4))
    engine.load.at_once = False
    engine.controller.arrive("reader", ABCD)
    loads = engine.controller.admit("reader").loads
    engine.generate(other(3, 10))
    engine.generate(other(4, 10))

    assert len(loads) == 1
    assert engine.counters["host_pages_evicted"] > 0
    loads[0].layers.wait(0)

    pages = engine.controller.pages("reader")
    assert [engine.device.hash_in(page) for page in pages] == page_hashes(ABCD, PAGE_TOKENS)
    engine.controller.abort("reader")
    engine.close()


@pytest.mark.parametrize("cuts", [[2], [2, 1], [3, 1], [1, 2, 3]])
@pytest.mark.parametrize("is_stored_before", [False, True])
def test_a_node_that_is_split_while_it_is_copied_or_written_keeps_every_page(
    cuts: list[int], is_stored_before: bool
) -> None:
    store = FlakyStore(MemoryStore())
    engine = Engine(device_pages=64, store=store, at_once=False)
    engine.generate(ABCD)
    if is_stored_before:
        engine.backup.run()
        engine.controller.step()

    branches = [prompt(*range(cut), 50 + cut, extra=1) for cut in cuts]
    for branch in branches:
        engine.generate(branch)
    engine.backup.run()
    engine.controller.settle()

    expected = {page_hash for tokens in (ABCD, *branches) for page_hash in page_hashes(tokens, PAGE_TOKENS)}
    assert stored(store) == expected
    assert not engine.controller.tree.transfers.running
    engine.close()
    reader = Engine(store=store, options=options(prefetch_policy="wait_complete"))
    assert reader.generate(ABCD).cached == CachedTokens(store=4 * PAGE_TOKENS)
    reader.close()


class RaisingStore(FlakyStore):
    """Raises *fault* at the *nth* call of *operation*."""

    def __init__(self, operation: str, nth: int, fault: int) -> None:
        super().__init__(MemoryStore())
        self._operation = operation
        self._left = nth
        self._fault = fault

    def _draw(self, operation: str, key: str) -> int | None:
        if operation == self._operation:
            self._left -= 1
            if not self._left:
                raise planted(self._fault)
        return None


@pytest.mark.parametrize("fault", range(len(FAULTS)), ids=lambda number: type(FAULTS[number]()).__name__)
@pytest.mark.parametrize("operation", ["write", "read", "stat"])
@pytest.mark.parametrize("nth", [1, 2, 4])
def test_whatever_a_backend_raises_the_threads_live_and_everything_is_given_back(
    operation: str, nth: int, fault: int
) -> None:
    store = RaisingStore(operation, nth, fault)
    engine = Engine(store=store, options=options(prefetch_policy="wait_complete", store_batch_pages=2))

    for _ in range(2):
        engine.generate(ABCD)
        engine.controller.settle()
        engine.check()
        engine.controller.flush()
        assert engine.host_slots.num_held == 0
    engine.generate(ABCD)
    engine.controller.settle()
    engine.controller.flush()

    assert engine.generate(ABCD).cached == CachedTokens(store=4 * PAGE_TOKENS)
    engine.close()


def test_stores_that_come_and_go_leave_no_thread() -> None:
    engine = Engine()
    before = set(threading.enumerate())

    for _ in range(50):
        engine.attach(MemoryStore())
        engine.generate(ABCD)
        engine.controller.detach()

    assert set(threading.enumerate()) <= before
    engine.close()


class _Slow(FlakyStore):
    """Lets a test see which pages are being written."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.go_on = threading.Event()
        self.entered = threading.Event()

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        self.entered.set()
        assert self.go_on.wait(60)
        return super().write(key, parts)


def test_host_pages_that_are_being_written_are_neither_evicted_nor_changed() -> None:
    store = _Slow()
    engine = Engine(device_pages=64, host_pages=8, store=store, options=options(prefetch_policy="best_effort"))
    engine.generate(ABCD)
    assert store.entered.wait(60)

    for number in range(1, 4):
        engine.generate(other(number, 8))

    store.go_on.set()
    engine.controller.settle()
    assert stored(store).issuperset(page_hashes(ABCD, PAGE_TOKENS))
    engine.close()
    reader = Engine(store=store, options=options(prefetch_policy="wait_complete"))
    assert reader.generate(ABCD).cached == CachedTokens(store=4 * PAGE_TOKENS)
    reader.close()


def _key(engine: Engine, tokens: list[int]) -> Key:
    return Key.of(tokens, engine.controller.tree.page_tokens)
