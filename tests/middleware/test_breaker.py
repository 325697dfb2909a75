"""A store that does not answer is left alone, and found again by itself."""

from __future__ import annotations

import threading

import pytest

from hicache_storage.errors import AccessDenied, StoreUnavailable
from hicache_storage.middleware import BreakerLayer
from hicache_storage.testing.faults import Fault, FaultyStore, Gate
from hicache_storage.testing.memory import MemoryStore


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def broken(failures: int = 3) -> tuple[BreakerLayer, FaultyStore, Clock]:
    clock = Clock()
    faulty = FaultyStore(MemoryStore(), [Fault("stat", "raise")])
    return BreakerLayer(faulty, failures=failures, open_s=1.0, max_open_s=4.0, clock=clock), faulty, clock


def fail(store: BreakerLayer, times: int) -> None:
    for _ in range(times):
        with pytest.raises(StoreUnavailable):
            store.stat("k")


def test_open_breaker_asks_the_store_nothing() -> None:
    store, faulty, _ = broken()
    fail(store, 3)
    asked = len(faulty.calls)

    fail(store, 5)

    assert store.state == "open"
    assert len(faulty.calls) == asked
    assert [bool(outcome) for outcome in store.exists_many(["a", "b"])] == [False, False]


def test_one_success_starts_the_count_anew() -> None:
    store, faulty, _ = broken()
    fail(store, 2)
    faulty.rescript([])
    store.stat("k")
    faulty.rescript([Fault("stat", "raise")])

    fail(store, 2)

    assert store.state == "closed"


def test_it_half_opens_probes_once_and_recovers() -> None:
    store, faulty, clock = broken()
    fail(store, 3)
    faulty.rescript([])
    clock.now_s = 1.0

    assert store.state == "half-open"
    assert store.stat("k") is None
    assert store.state == "closed"


def test_failed_probe_keeps_it_open_twice_as_long() -> None:
    store, _, clock = broken()
    fail(store, 3)
    open_for = []
    for _ in range(4):
        start = clock.now_s
        while store.state == "open":
            clock.now_s += 0.5
        open_for.append(clock.now_s - start)
        fail(store, 1)

    assert open_for == [1.0, 2.0, 4.0, 4.0]


def test_only_one_probe_goes_through_at_a_time() -> None:
    store, faulty, clock = broken()
    fail(store, 3)
    gate = Gate()
    faulty.rescript([Fault("stat", "delay", gate=gate)])
    clock.now_s = 1.0
    probe = threading.Thread(target=store.stat, args=("k",))
    probe.start()
    assert gate.entered.wait(10)

    with pytest.raises(StoreUnavailable, match="breaker"):
        store.stat("k")

    gate.open()
    probe.join()
    assert store.state == "closed"


def test_errors_of_single_objects_do_not_open_it() -> None:
    store, faulty, _ = broken(failures=1)
    faulty.rescript([Fault("stat", "raise", error=AccessDenied("no"))])

    for _ in range(5):
        with pytest.raises(AccessDenied):
            store.stat("k")

    assert store.state == "closed"


def test_batch_that_reached_the_store_in_part_reached_it() -> None:
    store, faulty, _ = broken(failures=1)
    faulty.rescript([Fault("stat", "raise", key="b")])

    outcomes = store.exists_many(["a", "b"])

    assert outcomes[1].error is not None
    assert store.state == "closed"
