"""F26: a call ends when its deadline does, and what still runs then never touches the caller's memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hicache_storage.deadline import remaining_s, within
from hicache_storage.errors import StoreUnavailable
from hicache_storage.middleware import DeadlineLayer, GuardLayer, RetryLayer
from hicache_storage.testing.faults import Fault, FaultyStore, Gate
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import Capabilities, ObjectInfo, ObjectWrite, RangeRead, Status, WritableBuffer
from tests.middleware.guards import join_guards

SHORT_S = 0.05
"""A deadline that is to pass."""

PATIENT_S = 60.0
"""One that a busy machine does not reach."""


def test_inner_deadline_never_outlives_the_outer_one() -> None:
    with within(60.0), within(600.0):
        assert 0 < remaining_s(1000.0) <= 60.0
    with within(60.0):
        assert remaining_s(1.0) == 1.0
    assert remaining_s(100.0) == 100.0


def test_deadline_that_is_over_leaves_nothing() -> None:
    with within(0.0):
        assert remaining_s(5.0) == 0.0


def test_layer_gives_its_deadline_to_whoever_asks_below() -> None:
    seen: list[float] = []

    class Asking(MemoryStore):
        def stat(self, key: str) -> ObjectInfo | None:
            seen.append(remaining_s(100.0))
            return None

    store = DeadlineLayer(GuardLayer(RetryLayer(Asking(), attempts=2), 90.0), 60.0)
    store.stat("k")
    store.exists_many(["k"])

    assert all(0 < left <= 60.0 for left in seen)
    assert len(seen) == 2


def guarded(gate: Gate, op: str, deadline_s: float = SHORT_S, **limits: int) -> tuple[GuardLayer, MemoryStore]:
    memory = MemoryStore()
    faulty = FaultyStore(memory, [Fault(op, "delay", gate=gate)])  # type: ignore[arg-type]
    return GuardLayer(faulty, deadline_s, **limits), memory


def test_read_that_comes_back_late_does_not_touch_the_callers_memory() -> None:
    gate = Gate()
    store, memory = guarded(gate, "read")
    memory.write("k", [b"late"])
    target = bytearray(b"\xa5" * 4)

    with pytest.raises(StoreUnavailable, match="no answer"):
        store.read_into("k", 0, [target])
    outcomes = store.read_many([RangeRead("k", 0, [target])])
    gate.open()
    join_guards()

    assert outcomes[0].status is Status.FAILED
    assert target == b"\xa5" * 4


def test_write_that_comes_back_late_stores_what_it_was_given() -> None:
    gate = Gate()
    store, memory = guarded(gate, "write")
    source = bytearray(b"right")

    with pytest.raises(StoreUnavailable):
        store.write("k", [source])
    assert store.write_many([ObjectWrite("l", [source])])[0].status is Status.FAILED
    source[:] = b"wrong"
    gate.open()
    join_guards()

    for key in "kl":
        stored = bytearray(5)
        assert memory.read_into(key, 0, [stored])
        assert stored == b"right"


def test_too_many_stuck_operations_fail_at_once_until_they_come_back() -> None:
    gate = Gate()
    store, _ = guarded(gate, "stat", PATIENT_S, stuck_limit=2)
    stuck = 0
    while stuck < 2:
        with within(SHORT_S), pytest.raises(StoreUnavailable) as caught:
            store.stat("k")
        stuck += "no answer" in str(caught.value)  # On a busy machine the deadline may be over before it has begun.

    with pytest.raises(StoreUnavailable, match="2 operations are stuck"):
        store.stat("k")

    gate.open()
    join_guards()
    assert store.stat("k") is None


def test_guard_gives_back_what_the_store_answers() -> None:
    store = GuardLayer(MemoryStore(), PATIENT_S)
    target = bytearray(2)

    store.write("k", [b"a", b"bc"])

    assert store.read_into("k", 1, [target])
    assert target == b"bc"
    assert store.read_many([RangeRead("k", 0, [target])])[0]
    assert target == b"ab"
    assert not store.read_into("absent", 0, [target])


def test_a_guarded_store_keeps_deadlines_and_has_no_use_for_registered_memory() -> None:
    known: list[str] = []

    class Registering(MemoryStore):
        capabilities = Capabilities(memory_registration=True)

        def register_memory(self, buffer: WritableBuffer) -> None:
            known.append("registered")

    store = GuardLayer(Registering(), 1.0)
    store.register_memory(bytearray(1))
    store.unregister_memory(bytearray(1))

    assert store.capabilities == Capabilities(keeps_deadline=True)
    assert known == []


def test_a_listing_that_hangs_ends_with_the_deadline() -> None:
    gate = Gate()

    class HangingLate(MemoryStore):
        def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
            yield ObjectInfo("first", 1)
            gate.pass_through()

    store = GuardLayer(HangingLate(), SHORT_S)

    with pytest.raises(StoreUnavailable, match="no answer"):
        list(store.list_keys())
    gate.open()
    join_guards()


def test_a_guarded_listing_is_whole() -> None:
    memory = MemoryStore()
    keys = [f"{number:05}" for number in range(2500)]
    for key in keys:
        memory.write(key, [b"x"])
    memory.write("other", [b"x"])

    assert [info.key for info in GuardLayer(memory, PATIENT_S).list_keys("0")] == keys


def test_nothing_is_begun_when_no_time_is_left() -> None:
    faulty = FaultyStore(MemoryStore())
    store = GuardLayer(faulty, 10.0)

    with within(0.0):
        with pytest.raises(StoreUnavailable, match="no time"):
            store.write("k", [b"x"])
        outcomes = store.read_many([RangeRead("k", 0, [bytearray(1)])])

    assert outcomes[0].status is Status.FAILED
    assert faulty.calls == []


def test_a_system_without_threads_is_a_failure_and_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = FaultyStore(MemoryStore())
    store = GuardLayer(faulty, PATIENT_S)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(StoreUnavailable, match="new thread"):
            store.stat("k")

    assert faulty.calls == []
    assert store.stat("k") is None


class SlowToClose(MemoryStore):
    """Answers and closes once the gate is open; notes on which threads it was closed."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self.closed_by: list[threading.Thread] = []

    def stat(self, key: str) -> ObjectInfo | None:
        self.gate.pass_through()
        return None

    def close(self) -> None:
        self.gate.pass_through()
        self.closed_by.append(threading.current_thread())


def test_a_store_that_is_stuck_is_left_when_it_does_not_close_in_time() -> None:
    gate = Gate()
    inner = SlowToClose(gate)
    store = GuardLayer(inner, SHORT_S)
    with pytest.raises(StoreUnavailable, match="no answer"):
        store.stat("k")

    store.close()

    assert inner.closed_by == []
    gate.open()
    join_guards()
    assert len(inner.closed_by) == 1


def test_a_store_that_is_not_stuck_has_all_the_time_to_close() -> None:
    gate = Gate()
    gate.open()
    inner = SlowToClose(gate)

    GuardLayer(inner, SHORT_S).close()

    assert inner.closed_by == [threading.current_thread()]
