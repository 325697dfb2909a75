"""What may work later is tried again, for the requests that failed, within the deadline."""

from __future__ import annotations

import pytest

from hicache_storage.deadline import within
from hicache_storage.errors import AccessDenied, CorruptObject, StoreUnavailable
from hicache_storage.middleware import RetryLayer
from hicache_storage.testing.faults import Fault, FaultyStore
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import ObjectWrite, RangeRead, Status, WriteResult


def retrying(script: list[Fault], attempts: int = 3) -> tuple[RetryLayer, FaultyStore, list[float]]:
    pauses: list[float] = []
    faulty = FaultyStore(MemoryStore(), script)
    return RetryLayer(faulty, attempts=attempts, base_s=0.1, cap_s=0.3, sleep=pauses.append), faulty, pauses


def test_operation_that_works_later_works() -> None:
    store, _, pauses = retrying([Fault("write", "raise", nth=1), Fault("write", "raise", nth=2)])

    assert store.write("k", [b"x"]) is WriteResult.STORED
    assert len(pauses) == 2


def test_last_failure_is_raised_when_all_attempts_failed() -> None:
    store, faulty, _ = retrying([Fault("stat", "raise")])

    with pytest.raises(StoreUnavailable, match="scripted"):
        store.stat("k")
    assert len(faulty.calls) == 3


@pytest.mark.parametrize("error", [AccessDenied("no"), CorruptObject("bad")])
def test_what_cannot_work_later_is_not_tried_again(error: Exception) -> None:
    store, faulty, _ = retrying([Fault("stat", "raise", error=error)])

    with pytest.raises(type(error)):
        store.stat("k")
    assert len(faulty.calls) == 1


def test_of_a_batch_only_what_failed_is_tried_again() -> None:
    store, faulty, _ = retrying([Fault("write", "raise", nth=1, key="b")])

    outcomes = store.write_many([ObjectWrite(key, [b"x"]) for key in "abc"])

    assert [outcome.status for outcome in outcomes] == [Status.STORED] * 3
    assert [call.key for call in faulty.calls if call.op == "write"] == ["a", "b", "c", "b"]


def test_answer_lost_after_a_write_is_found_there() -> None:
    store, _, _ = retrying([Fault("write", "lost_answer", nth=1)])

    assert store.write("k", [b"x"]) is WriteResult.ALREADY_THERE


def test_pauses_are_spread_over_the_whole_interval_and_bounded() -> None:
    pauses: list[float] = []
    for _ in range(200):
        store, _, mine = retrying([Fault("stat", "raise")], attempts=4)
        with pytest.raises(StoreUnavailable):
            store.stat("k")
        pauses += mine

    assert max(pauses) <= 0.3
    assert min(pauses) < 0.05
    assert max(pauses) > 0.2


def test_no_pause_is_begun_that_the_deadline_would_cut() -> None:
    store, faulty, pauses = retrying([Fault("stat", "raise")], attempts=50)

    with within(0.0), pytest.raises(StoreUnavailable):
        store.stat("k")
    assert pauses == []
    assert len(faulty.calls) == 1


def test_whoever_hashes_while_reading_is_told_to_start_over() -> None:
    store, _, _ = retrying([Fault("read", "raise", nth=1)])
    store.write("k", [b"abc"])
    told: list[int] = []

    outcomes = store.read_many([RangeRead("k", 0, [bytearray(3)], on_filled=told.append)])

    assert outcomes[0]
    assert told[0] == 0
