"""Reads wait for their turn, writes are dropped, and every budget returns to zero."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hicache_storage.deadline import within
from hicache_storage.errors import AccessDenied, StoreUnavailable
from hicache_storage.middleware import Budget, ReadBudgetLayer, WriteBudgetLayer
from hicache_storage.testing.faults import Fault, FaultyStore, Gate
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import ObjectWrite, RangeRead, Status


def test_whoever_wants_more_than_all_takes_all() -> None:
    budget = Budget(10)

    taken = budget.take(1000, wait_s=0)

    assert taken == 10
    assert budget.take(1, wait_s=0) is None
    budget.give_back(taken)
    assert budget.in_flight_nbytes == 0


def test_reads_never_exceed_the_budget() -> None:
    most = [0]

    class Watching(MemoryStore):
        def read_many(self, reads: object) -> list[object]:  # type: ignore[override]
            most[0] = max(most[0], layer.budget.in_flight_nbytes)
            return super().read_many(reads)  # type: ignore[arg-type,return-value]

    inner = Watching()
    layer = ReadBudgetLayer(inner, 1000)
    inner.write("k", [bytes(300)])
    reads = [RangeRead("k", 0, [bytearray(300)]) for _ in range(20)]

    with ThreadPoolExecutor(8) as callers:
        outcomes = list(callers.map(lambda _: layer.read_many(reads), range(8)))

    assert all(all(batch) and len(batch) == 20 for batch in outcomes)
    assert 0 < most[0] <= 1000
    assert layer.budget.in_flight_nbytes == 0


def test_read_that_finds_no_room_in_time_is_a_failure() -> None:
    layer = ReadBudgetLayer(MemoryStore(), 10)
    held = layer.budget.take(10, wait_s=0)
    assert held is not None

    with within(0.0):
        outcomes = layer.read_many([RangeRead("k", 0, [bytearray(5)])])
        with pytest.raises(StoreUnavailable, match="read budget"):
            layer.read_into("k", 0, [bytearray(5)])

    assert outcomes[0].status is Status.FAILED
    layer.budget.give_back(held)
    assert layer.read_many([RangeRead("k", 0, [bytearray(5)])])[0].status is Status.MISS


def test_write_beyond_the_budget_is_dropped_and_counted() -> None:
    gate = Gate()
    layer = WriteBudgetLayer(FaultyStore(MemoryStore(), [Fault("write", "delay", nth=1, gate=gate)]), 100)
    slow = threading.Thread(target=layer.write, args=("slow", [bytes(80)]))
    slow.start()
    assert gate.entered.wait(10)

    outcomes = layer.write_many([ObjectWrite("a", [bytes(15)]), ObjectWrite("b", [bytes(15)])])
    with pytest.raises(StoreUnavailable, match="dropped"):
        layer.write("c", [bytes(30)])
    assert layer.write("small", [bytes(10)])

    gate.open()
    slow.join()
    assert [outcome.status for outcome in outcomes] == [Status.FAILED] * 2
    assert layer.dropped == 3
    assert layer.budget.in_flight_nbytes == 0


@pytest.mark.parametrize("error", [AccessDenied("no"), ValueError("bug")])
def test_budget_is_given_back_when_the_store_raises(error: Exception) -> None:
    faulty = FaultyStore(MemoryStore(), [Fault("write", "raise", error=error), Fault("read", "raise", error=error)])
    writes, reads = WriteBudgetLayer(faulty, 100), ReadBudgetLayer(faulty, 100)

    with pytest.raises(type(error)):
        writes.write("k", [b"x"])
    with pytest.raises(type(error)):
        reads.read_into("k", 0, [bytearray(1)])

    assert writes.budget.in_flight_nbytes == reads.budget.in_flight_nbytes == 0
