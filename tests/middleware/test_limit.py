"""Reads wait for their turn, writes are dropped, and every budget returns to zero."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from hicache_storage.batches import LazySequence
from hicache_storage.deadline import within
from hicache_storage.errors import AccessDenied, StoreError, StoreUnavailable, Unsupported
from hicache_storage.middleware import Budget, ReadBudgetLayer, WriteBudgetLayer
from hicache_storage.testing.faults import Fault, FaultyStore
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import Capabilities, ObjectWrite, Outcome, RangeRead, Status


class Watching(MemoryStore):
    """Notes the parts in which batches arrive and the most bytes that were under way."""

    layer: ReadBudgetLayer | WriteBudgetLayer

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[list[str]] = []
        self.most_nbytes = 0

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        self.most_nbytes = max(self.most_nbytes, self.layer.budget.in_flight_nbytes)
        return super().read_many(reads)

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        self.parts.append([write.key for write in writes])
        self.most_nbytes = max(self.most_nbytes, self.layer.budget.in_flight_nbytes)
        return super().write_many(writes)


def test_whoever_wants_more_than_all_takes_all() -> None:
    budget = Budget(10)

    taken = budget.take(1000, wait_s=0)

    assert taken == 10
    assert budget.take(1, wait_s=0) is None
    budget.give_back(taken)
    assert budget.in_flight_nbytes == 0


def test_reads_never_exceed_the_budget() -> None:
    inner = Watching()
    inner.layer = layer = ReadBudgetLayer(inner, 1000)
    inner.write("k", [bytes(300)])
    reads = [RangeRead("k", 0, [bytearray(300)]) for _ in range(20)]

    with ThreadPoolExecutor(8) as callers:
        outcomes = list(callers.map(lambda _: layer.read_many(reads), range(8)))

    assert all(all(batch) and len(batch) == 20 for batch in outcomes)
    assert 0 < inner.most_nbytes <= 1000
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


def watched(nbytes: int) -> tuple[WriteBudgetLayer, Watching]:
    inner = Watching()
    inner.layer = WriteBudgetLayer(inner, nbytes)
    return inner.layer, inner


def writes_of(**nbytes: int) -> list[ObjectWrite]:
    return [ObjectWrite(key, [bytes(size)]) for key, size in nbytes.items()]


@contextmanager
def under_way(layer: WriteBudgetLayer, nbytes: int) -> Iterator[None]:
    """A write of *nbytes* is under way while in the block."""
    _, taken = layer.budget.take_leading([nbytes])
    assert taken == nbytes
    yield
    layer.budget.give_back(taken)


def test_a_batch_beyond_the_budget_is_written_in_parts_in_order() -> None:
    layer, inner = watched(100)

    outcomes = layer.write_many(writes_of(a=60, b=40, c=70, d=10, e=30, f=100))

    assert [outcome.status for outcome in outcomes] == [Status.STORED] * 6
    assert inner.parts == [["a", "b"], ["c", "d"], ["e"], ["f"]]
    assert inner.most_nbytes == 100
    assert (layer.budget.in_flight_nbytes, layer.dropped) == (0, 0)


def test_what_does_not_fit_beside_others_is_dropped_from_its_tail_and_counted() -> None:
    layer, inner = watched(100)
    with under_way(layer, 50):
        outcomes = layer.write_many(writes_of(a=20, b=20, c=60, d=1))

        assert inner.parts == [["a", "b"]]
        assert [outcome.status for outcome in outcomes] == [Status.STORED] * 2 + [Status.FAILED] * 2
        assert all(isinstance(outcome.error, StoreUnavailable) for outcome in outcomes[2:])
        assert "61 bytes dropped: 50 of 100 are under way" in str(outcomes[2].error)
        with pytest.raises(StoreUnavailable, match="dropped"):
            layer.write("e", [bytes(51)])
        assert layer.write("fits", [bytes(50)])

    assert (layer.budget.in_flight_nbytes, layer.dropped) == (0, 3)


def test_an_object_larger_than_the_budget_is_refused_alone() -> None:
    layer, _ = watched(100)

    outcomes = layer.write_many(writes_of(a=10, b=101, c=10))

    assert [outcome.status for outcome in outcomes] == [Status.STORED, Status.FAILED, Status.STORED]
    assert isinstance(outcomes[1].error, Unsupported)
    assert "101 bytes, the write budget is 100" in str(outcomes[1].error)
    with pytest.raises(Unsupported, match="write budget is 100"):
        layer.write("b", [bytes(101)])
    assert (layer.budget.in_flight_nbytes, layer.dropped) == (0, 0)


@pytest.mark.parametrize(("inner_limit", "limit"), [(None, 100), (60, 60), (200, 100)])
def test_the_budget_is_the_size_of_the_largest_object(inner_limit: int | None, limit: int) -> None:
    inner = MemoryStore()
    inner.capabilities = Capabilities(max_object_nbytes=inner_limit)

    assert WriteBudgetLayer(inner, 100).capabilities.max_object_nbytes == limit


def test_each_write_of_a_batch_is_built_once() -> None:
    built: list[int] = []
    layer, _ = watched(30)

    def make(index: int) -> ObjectWrite:
        built.append(index)
        return ObjectWrite(str(index), [bytes(20)])

    assert all(layer.write_many(LazySequence(4, make)))

    assert built == [0, 1, 2, 3]


def test_a_batch_is_given_up_once_the_store_does_not_answer_a_part_of_it() -> None:
    faulty = FaultyStore(MemoryStore(), [Fault("write", "raise", nth=2), Fault("write", "raise", nth=3)])
    layer = WriteBudgetLayer(faulty, 20)

    outcomes = layer.write_many(writes_of(a=20, b=10, c=10, d=20, e=20))

    assert [outcome.status for outcome in outcomes] == [Status.STORED] + [Status.FAILED] * 4
    assert [call.key for call in faulty.calls if call.op == "write"] == ["a", "b", "c"]


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), AccessDenied("no")])
def test_a_part_that_raises_fails_alone_or_with_those_behind_it(error: StoreError) -> None:
    class Raising(MemoryStore):
        def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
            if writes[0].key == "b":
                raise error
            return super().write_many(writes)

    layer = WriteBudgetLayer(Raising(), 20)

    outcomes = layer.write_many(writes_of(a=20, b=20, c=20))

    assert outcomes[0].status is Status.STORED
    assert outcomes[1].error is error
    assert bool(outcomes[2]) is isinstance(error, AccessDenied)
    assert layer.budget.in_flight_nbytes == 0


def test_reads_are_given_up_once_the_store_does_not_answer_a_part_of_them() -> None:
    faulty = FaultyStore(MemoryStore(), [Fault("read", "raise")])
    layer = ReadBudgetLayer(faulty, 10)

    outcomes = layer.read_many([RangeRead(key, 0, [bytearray(10)]) for key in "abc"])

    assert [outcome.status for outcome in outcomes] == [Status.FAILED] * 3
    assert [call.key for call in faulty.calls if call.op == "read"] == ["a"]


def test_a_small_read_does_not_overtake_a_large_one_that_waits() -> None:
    budget = Budget(10)
    held = budget.take(8, wait_s=0)
    assert held is not None
    waits = threading.Event()

    class Noting(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            waits.set()
            return super().wait(timeout)

    budget._changed = Noting()
    taken: list[int | None] = []
    large = threading.Thread(target=lambda: taken.append(budget.take(10, wait_s=60)))
    large.start()
    assert waits.wait(60)

    assert budget.take(1, wait_s=0) is None

    budget.give_back(held)
    large.join(60)
    assert taken == [10]


@pytest.mark.parametrize("error", [ValueError("bug"), KeyboardInterrupt()], ids=["bug", "interrupt"])
def test_budget_of_a_part_is_given_back_whatever_ends_it(error: BaseException) -> None:
    class Ending(MemoryStore):
        def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
            raise error

        def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
            raise error

    writes, reads = WriteBudgetLayer(Ending(), 100), ReadBudgetLayer(Ending(), 100)

    with pytest.raises(type(error)):
        writes.write_many(writes_of(a=1, b=100))
    with pytest.raises(type(error)):
        reads.read_many([RangeRead("a", 0, [bytearray(1)])])

    assert writes.budget.in_flight_nbytes == reads.budget.in_flight_nbytes == 0


@pytest.mark.parametrize("error", [AccessDenied("no"), ValueError("bug")])
def test_budget_is_given_back_when_the_store_raises(error: Exception) -> None:
    faulty = FaultyStore(MemoryStore(), [Fault("write", "raise", error=error), Fault("read", "raise", error=error)])
    writes, reads = WriteBudgetLayer(faulty, 100), ReadBudgetLayer(faulty, 100)

    with pytest.raises(type(error)):
        writes.write("k", [b"x"])
    with pytest.raises(type(error)):
        reads.read_into("k", 0, [bytearray(1)])

    assert writes.budget.in_flight_nbytes == reads.budget.in_flight_nbytes == 0
