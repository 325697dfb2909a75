from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from hicache_storage.backends.tiered import TieredOptions, TieredStore
from hicache_storage.errors import AccessDenied, StoreFull, StoreUnavailable
from hicache_storage.testing.faults import Fault, Gate
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from hicache_storage.types import ObjectWrite, Outcome, Status, WritableBuffer, WriteResult
from tests.backends.tiered.setup import BODY, KEY, Tier, broken

DEADLINE_S = 60


@pytest.mark.parametrize(
    ("write", "has"),
    [("all", [True, True, True]), ("first", [True, False, False]), ("first_then_background", [True, True, True])],
)
def test_an_object_is_written_to_where_the_policy_says(
    write: Literal["all", "first", "first_then_background"], has: list[bool]
) -> None:
    tiers = [Tier(), Tier(), Tier()]
    with TieredStore(TieredOptions(stores=tiers, write=write)) as store:
        assert store.write(KEY, [BODY[:50], BODY[50:]]) is WriteResult.STORED
        assert store.settle(DEADLINE_S)

        assert [tier.has() == BODY for tier in tiers] == has


@pytest.mark.parametrize("failing", [0, 1])
def test_a_write_succeeds_if_one_store_takes_it(failing: int) -> None:
    tiers = [broken("write") if number == failing else Tier() for number in range(2)]
    with TieredStore(TieredOptions(stores=tiers)) as store:
        assert store.write(KEY, [BODY]) is WriteResult.STORED

        assert [tier.has() for tier in tiers] == [None, BODY] if failing == 0 else [BODY, None]
        assert store.counters[f"tier_failed.{failing}.StoreUnavailable"] == 1


@pytest.mark.parametrize("write", ["all", "first", "first_then_background"])
def test_a_write_that_no_store_takes_fails(write: Literal["all", "first", "first_then_background"]) -> None:
    tiers = [
        Tier([Fault("write", "raise", error=StoreFull("full"))]),
        Tier([Fault("write", "raise", error=AccessDenied("no"))]),
    ]
    with TieredStore(TieredOptions(stores=tiers, write=write)) as store, pytest.raises(StoreFull):
        store.write(KEY, [BODY])


def test_what_the_first_store_has_no_room_for_goes_to_the_next() -> None:
    upper, lower = MemoryStore(MemoryOptions(capacity_nbytes=300)), Tier()
    with TieredStore(TieredOptions(stores=[upper, lower], write="first")) as store:
        outcomes = store.write_many([ObjectWrite(key, [BODY]) for key in ("a", "b")])

        assert [outcome.status for outcome in outcomes] == [Status.STORED, Status.STORED]
        assert [upper.stat(key) is not None for key in ("a", "b")] == [True, False]
        assert [lower.has(key) for key in ("a", "b")] == [None, BODY]


def test_a_write_does_not_wait_for_the_stores_below() -> None:
    gate = Gate()
    upper, lower = Tier(), Tier([Fault("write", "delay", gate=gate)])
    with TieredStore(TieredOptions(stores=[upper, lower], write="first_then_background")) as store:
        assert store.write(KEY, [BODY]) is WriteResult.STORED
        assert gate.entered.wait(DEADLINE_S)

        assert (upper.has(), lower.has()) == (BODY, None)
        gate.open()


def test_closing_waits_for_the_writes_below() -> None:
    gate = Gate()
    kept: dict[str, bytes] = {}

    class Keeping(Tier):
        def close(self) -> None:
            kept.update(self.memory._objects)
            super().close()

    lower = Keeping([Fault("write", "delay", gate=gate)])
    options = TieredOptions(
        stores=[Tier(), lower], write="first_then_background", background_threads=1, drain_s=DEADLINE_S
    )
    store = TieredStore(options)
    store.write_many([ObjectWrite(str(number), [BODY]) for number in range(5)])
    assert gate.entered.wait(DEADLINE_S)
    gate.open()

    store.close()

    assert kept == {str(number): BODY for number in range(5)}


def test_closing_gives_up_in_the_end_and_says_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    lower = Tier([Fault("write", "delay", gate=gate)])
    options = TieredOptions(stores=[Tier(), lower], write="first_then_background", background_threads=1, drain_s=0)
    store = TieredStore(options)
    store.write_many([ObjectWrite(str(number), [BODY]) for number in range(5)])
    assert gate.entered.wait(DEADLINE_S)

    with caplog.at_level(logging.WARNING):
        store.close()
    gate.open()

    assert "tiered.copies_lost count=4" in caplog.text
    assert store.settle(DEADLINE_S)


def test_a_write_that_cannot_be_copied_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    lower = Tier([Fault("write", "delay", gate=gate)])
    options = TieredOptions(
        stores=[Tier(), lower], write="first_then_background", background_threads=1, background_jobs=1
    )
    with TieredStore(options) as store:
        store.write("0", [BODY])
        assert gate.entered.wait(DEADLINE_S)
        outcomes = store.write_many([ObjectWrite(key, [BODY]) for key in "123"])
        gate.open()

        assert all(outcomes)
        assert store.counters["copies_dropped"] == 2
    assert "tiered.copy_dropped" in caplog.text


def test_an_object_that_was_there_is_not_copied_again() -> None:
    upper, lower = Tier(), Tier()
    upper.plant()
    with TieredStore(TieredOptions(stores=[upper, lower], write="first_then_background")) as store:
        assert store.write(KEY, [BODY]) is WriteResult.ALREADY_THERE
        assert store.settle(DEADLINE_S)

    assert lower.count("write") == 0


def test_parts_are_built_once_for_all_stores() -> None:
    built: list[int] = []

    class Lazy(list[ObjectWrite]):
        def __getitem__(self, index: object) -> ObjectWrite:  # type: ignore[override]
            assert isinstance(index, int)
            built.append(index)
            return ObjectWrite(str(index), [BODY])

    with TieredStore(TieredOptions(stores=[Tier(), Tier()])) as store:
        assert all(store.write_many(Lazy([ObjectWrite("", [])] * 3)))

    assert sorted(built) == [0, 1, 2]


class NotingTail:
    nbytes = 1

    def __init__(self) -> None:
        self.told: list[int] = []

    def advance(self, nbytes: int) -> None:
        self.told.append(nbytes)

    def finish(self) -> bytes:
        return b"t"


class Piecewise(Tier):
    """Tells a tail of its payload, as a store does that writes in pieces."""

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        for index in range(len(writes)):
            if (tail := writes[index].tail) is not None:
                tail.advance(1)
                tail.advance(len(BODY))
        return super().write_many(writes)


@pytest.mark.parametrize("write", ["all", "first"])
def test_a_tail_is_told_of_one_passage_and_stored_by_every_store(write: Literal["all", "first"]) -> None:
    upper, lower = Piecewise([Fault("write", "raise", key="refused above")]), Piecewise()
    tail = NotingTail()
    with TieredStore(TieredOptions(stores=[upper, lower], write=write)) as store:
        assert all(store.write_many([ObjectWrite("refused above", [BODY], tail)]))

        assert tail.told == [1, len(BODY)]
        assert lower.has("refused above") == BODY + b"t"


@pytest.mark.parametrize("op", ["delete", "quarantine"])
def test_an_object_is_removed_from_every_store(op: Literal["delete", "quarantine"]) -> None:
    tiers = [Tier(), Tier(), Tier()]
    for tier in tiers[1:]:
        tier.plant()
    with TieredStore(TieredOptions(stores=tiers)) as store:
        assert getattr(store, op)(KEY)
        assert not getattr(store, op)(KEY)

        assert [tier.has() for tier in tiers] == [None] * 3
        assert [tier.count(op) for tier in tiers] == [2, 2, 2]


@pytest.mark.parametrize("op", ["delete", "quarantine"])
def test_a_removal_that_one_store_did_not_answer_is_a_failure(op: Literal["delete", "quarantine"]) -> None:
    upper, lower = Tier(), broken(op)
    upper.plant()
    with TieredStore(TieredOptions(stores=[upper, lower])) as store:
        with pytest.raises(StoreUnavailable):
            getattr(store, op)(KEY)

        assert upper.has() is None


def test_a_touch_reaches_every_store() -> None:
    tiers = [Tier(), Tier()]
    tiers[1].plant()
    with TieredStore(TieredOptions(stores=tiers)) as store:
        assert [outcome.status for outcome in store.touch_many([KEY, "missing"])] == [Status.HIT, Status.MISS]

        assert [tier.count("touch_many") for tier in tiers] == [1, 1]


def test_memory_is_registered_with_every_store() -> None:
    known: list[tuple[int, str]] = []

    class Registering(Tier):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def register_memory(self, buffer: WritableBuffer) -> None:
            known.append((self.number, "register"))

        def unregister_memory(self, buffer: WritableBuffer) -> None:
            known.append((self.number, "unregister"))

    with TieredStore(TieredOptions(stores=[Registering(0), Registering(1)])) as store:
        arena = bytearray(8)
        store.register_memory(arena)
        store.unregister_memory(arena)

    assert known == [(0, "register"), (1, "register"), (0, "unregister"), (1, "unregister")]


class Closing(Tier):
    def __init__(self, number: int, closed: list[int]) -> None:
        super().__init__()
        self._number, self._log = number, closed

    def close(self) -> None:
        self._log.append(self._number)
        if self._number == 0:
            raise StoreUnavailable("closing failed")


def test_every_store_is_closed_once_in_order_also_if_one_fails() -> None:
    closed: list[int] = []
    store = TieredStore(TieredOptions(stores=[Closing(0, closed), Closing(1, closed), Closing(2, closed)]))

    with pytest.raises(StoreUnavailable):
        store.close()
    store.close()

    assert closed == [0, 1, 2]


def test_a_store_that_does_not_open_closes_those_that_did(tmp_path: Path) -> None:
    closed: list[int] = []
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StoreUnavailable):
        TieredStore(TieredOptions(stores=[Closing(1, closed), f"file://{tmp_path}/file"]))

    assert closed == [1]
