"""A store that does not answer is left alone, and found again by itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial

import pytest

from hicache_storage.errors import AccessDenied, StoreUnavailable, Unsupported
from hicache_storage.middleware import BreakerLayer
from hicache_storage.testing.faults import Fault, FaultyStore, Gate
from hicache_storage.testing.hooks import at_once
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import ObjectInfo, Outcome

PATIENT_S = 60.0


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


def test_whoever_is_told_that_it_turned_may_look_at_it() -> None:
    store, faulty, clock = broken(failures=1)
    seen: list[tuple[str, str]] = []

    class Looking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append((record.getMessage().split()[0], store.state))

    def open_and_close() -> None:
        fail(store, 1)
        faulty.rescript([])
        clock.now_s = 1.0
        store.stat("k")

    log = logging.getLogger("hicache_storage.middleware.breaker")
    handler, level = Looking(), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        thread = threading.Thread(target=open_and_close, daemon=True)
        thread.start()
        thread.join(PATIENT_S)
    finally:
        log.setLevel(level)
        log.removeHandler(handler)

    assert not thread.is_alive()
    assert seen == [("breaker.open", "open"), ("breaker.closed", "closed")]


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
    assert gate.entered.wait(PATIENT_S)

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


def test_calls_that_fail_together_open_it_once() -> None:
    together = threading.Barrier(8)

    class Unreachable(MemoryStore):
        def stat(self, key: str) -> ObjectInfo | None:
            together.wait(PATIENT_S)
            raise StoreUnavailable("no answer")

    clock = Clock()
    store = BreakerLayer(Unreachable(), failures=3, open_s=1.0, clock=clock)

    at_once(*[partial(fail, store, 1)] * 8)

    clock.now_s = 0.5
    assert store.state == "open"
    clock.now_s = 1.0
    assert store.state == "half-open"


class Late:
    """A call that begins now, on a thread of its own, and ends when it is told to."""

    def __init__(self, store: BreakerLayer, key: str, gate: Gate) -> None:
        self._gate = gate
        self._thread = threading.Thread(target=store.exists_many, args=([key],))
        self._thread.start()
        assert gate.entered.wait(PATIENT_S)

    def end(self) -> None:
        self._gate.open()
        self._thread.join(PATIENT_S)


@pytest.mark.parametrize("outcome", ["reaches", "fails"])
def test_only_the_probe_moves_a_half_open_breaker(outcome: str) -> None:
    store, faulty, clock = broken(failures=1)
    slow, probing = Gate(), Gate()
    faulty.rescript(
        [
            Fault("stat", "delay", key="reaches", gate=slow),
            Fault("stat", "delay", key="fails", gate=slow),
            Fault("stat", "delay", key="probe", gate=probing),
            Fault("stat", "raise", key="fails"),
            Fault("stat", "raise", key="k"),
        ]
    )
    begun_while_closed = Late(store, outcome, slow)
    fail(store, 1)
    clock.now_s = 1.0
    probe = Late(store, "probe", probing)

    begun_while_closed.end()

    assert store.state == "half-open"
    asked = len(faulty.calls)
    fail(store, 1)
    assert len(faulty.calls) == asked
    probe.end()
    assert store.state == "closed"


def test_a_call_begun_before_it_opened_does_not_count_after_it_closed() -> None:
    store, faulty, clock = broken(failures=1)
    slow = Gate()
    faulty.rescript(
        [
            Fault("stat", "delay", key="late", gate=slow),
            Fault("stat", "raise", key="late"),
            Fault("stat", "raise", key="k", nth=1),
        ]
    )
    begun_before = Late(store, "late", slow)
    fail(store, 1)
    clock.now_s = 1.0
    assert store.stat("k") is None

    begun_before.end()

    assert store.state == "closed"


@pytest.mark.parametrize("error", [Unsupported("the key is too long"), ValueError("a bug")], ids=["unsupported", "bug"])
def test_a_probe_that_tells_nothing_leaves_the_next_call_to_probe(error: Exception) -> None:
    store, faulty, clock = broken(failures=1)
    fail(store, 1)
    faulty.rescript([Fault("stat", "raise", error=error, nth=1)])
    clock.now_s = 1.0

    with pytest.raises(type(error)):
        store.stat("k")

    assert store.state == "half-open"
    assert store.stat("k") is None
    assert store.state == "closed"


def test_an_empty_batch_does_not_close_it() -> None:
    store, _, clock = broken(failures=1)
    fail(store, 1)
    clock.now_s = 1.0

    assert store.exists_many([]) == []

    assert store.state == "half-open"


def test_a_batch_that_raises_is_judged_by_its_error() -> None:
    class Refusing(MemoryStore):
        def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
            raise AccessDenied("no")

    store = BreakerLayer(Refusing(), failures=1)

    with pytest.raises(AccessDenied):
        store.exists_many(["k"])

    assert store.state == "closed"


def test_it_never_opens_for_less_than_it_was_told() -> None:
    clock = Clock()
    store = BreakerLayer(FaultyStore(MemoryStore(), [Fault("stat", "raise")]), failures=1, open_s=60.0, clock=clock)
    fail(store, 1)
    clock.now_s = 60.0
    fail(store, 1)

    clock.now_s = 119.0

    assert store.state == "open"
