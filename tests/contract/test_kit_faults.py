"""`FaultyStore`: transparent without a script, and exact with one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from hicache_storage.errors import AccessDenied, CorruptObject, RangeError, StoreError, StoreUnavailable
from hicache_storage.store import ObjectStore
from hicache_storage.testing.bodies import poisoned
from hicache_storage.testing.faults import Call, Fault, FaultyStore, Gate, Kind, Op
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.testing.model import store_machine
from hicache_storage.types import HIT, MISS, STORED, ObjectWrite, RangeRead, WriteResult

TestUnscripted = store_machine(lambda: FaultyStore(MemoryStore()))


def _holding(script: list[Fault], **bodies: bytes) -> FaultyStore:
    inner = MemoryStore()
    for key, body in bodies.items():
        inner.write(key, [body])
    return FaultyStore(inner, script)


def _read(store: ObjectStore, key: str, length: int, object_nbytes: int | None = None) -> bytes | None:
    target = poisoned(length)
    return bytes(target) if store.read_into(key, 0, [target], object_nbytes=object_nbytes) else None


CALLS: dict[Op, Callable[[ObjectStore], object]] = {
    "write": lambda store: store.write("new", [b"x"]),
    "read": lambda store: _read(store, "a", 4),
    "stat": lambda store: store.stat("a"),
    "delete": lambda store: store.delete("a"),
    "list": lambda store: list(store.list_keys("")),
    "quarantine": lambda store: store.quarantine("a"),
}


@pytest.mark.parametrize("op", CALLS)
def test_a_raised_fault_happens_instead_of_the_operation(op: Op) -> None:
    store = _holding([Fault(op, "raise")], a=b"0123")

    with pytest.raises(StoreUnavailable) as caught:
        CALLS[op](store)

    assert caught.value.op == op
    assert [info.key for info in store.inner.list_keys()] == ["a"]


def test_a_given_error_is_raised_as_it_is() -> None:
    error = AccessDenied("no")
    store = _holding([Fault("read", "raise", error=error)], a=b"0123")

    with pytest.raises(AccessDenied) as caught:
        _read(store, "a", 4)

    assert caught.value is error


def test_an_error_that_is_no_store_error_leaves_a_batch_as_it_is() -> None:
    store = _holding([Fault("stat", "raise", error=OSError("disk"))], a=b"0123")

    with pytest.raises(OSError, match="disk"):
        store.exists_many(["a"])


@pytest.mark.parametrize("op", ["read", "stat", "delete", "list", "quarantine"])
def test_a_miss_leaves_the_object_alone(op: Op) -> None:
    store = _holding([Fault(op, "miss")], a=b"0123")

    assert not CALLS[op](store)

    assert _read(store.inner, "a", 4) == b"0123"


@pytest.mark.parametrize(("op", "there"), [("write", ["a", "new"]), ("delete", []), ("quarantine", [])])
def test_a_lost_answer_comes_after_the_operation(op: Op, there: list[str]) -> None:
    store = _holding([Fault(op, "lost_answer")], a=b"0123")

    with pytest.raises(StoreUnavailable):
        CALLS[op](store)

    assert [info.key for info in store.inner.list_keys()] == there


def test_a_dropped_write_is_reported_as_stored() -> None:
    store = _holding([Fault("write", "drop")])

    assert store.write("a", [b"0123"]) is WriteResult.STORED

    assert store.inner.stat("a") is None


def test_a_short_object_never_gives_bytes_that_it_lacks() -> None:
    store = _holding([Fault("read", "short", nbytes=2), Fault("stat", "short", nbytes=2)], a=b"0123")

    assert _read(store, "a", 2) == b"01"
    with pytest.raises(RangeError):
        _read(store, "a", 3)
    with pytest.raises(CorruptObject):
        _read(store, "a", 1, object_nbytes=4)
    info = store.stat("a")
    assert info is not None
    assert info.nbytes == 2


def test_a_long_object_has_zeros_behind_it() -> None:
    store = _holding([Fault("read", "long", nbytes=2), Fault("stat", "long", nbytes=2)], a=b"0123")

    assert _read(store, "a", 6) == b"0123\0\0"
    with pytest.raises(CorruptObject):
        _read(store, "a", 4, object_nbytes=4)
    info = store.stat("a")
    assert info is not None
    assert info.nbytes == 6


def test_a_corrupt_read_differs_in_one_bit_of_the_range() -> None:
    store = _holding([Fault("read", "corrupt")], a=b"0123")
    target = poisoned(2)

    assert store.read_into("a", 2, [target], object_nbytes=4)

    assert target == b"33"
    assert _read(store.inner, "a", 4) == b"0123"


@pytest.mark.parametrize("kind", ["short", "long", "corrupt"])
def test_a_missing_object_stays_missing(kind: Kind) -> None:
    assert _read(_holding([Fault("read", kind)]), "a", 1) is None


def test_the_nth_call_is_counted_for_its_operation_and_key() -> None:
    store = _holding([Fault("read", "miss", nth=2, key="a")], a=b"0", b=b"1")

    seen = [_read(store, key, 1) for key in ("b", "a", "b", "a", "a")]

    assert seen == [b"1", b"0", b"1", None, b"0"]


def test_a_batch_goes_through_the_script_item_by_item() -> None:
    store = _holding([Fault("read", "raise", nth=2), Fault("read", "miss", key="c")], a=b"0", b=b"1", c=b"2", d=b"3")
    targets = [poisoned(1) for _ in "abcd"]

    outcomes = store.read_many([RangeRead(key, 0, [target]) for key, target in zip("abcd", targets, strict=True)])

    assert [outcomes[0], outcomes[2], outcomes[3]] == [HIT, MISS, HIT]
    assert isinstance(outcomes[1].error, StoreUnavailable)
    assert (bytes(targets[0]), bytes(targets[3])) == (b"0", b"3")


def test_every_batch_goes_through_the_script() -> None:
    store = _holding([Fault("write", "raise", key="x"), Fault("stat", "miss"), Fault("delete", "raise")], a=b"0")

    written = store.write_many([ObjectWrite("x", [b"1"]), ObjectWrite("y", [b"2"])])

    assert isinstance(written[0].error, StoreError)
    assert written[1] == STORED
    assert store.exists_many(["a"]) == [MISS]
    assert store.touch_many(["a"]) == [MISS]
    assert isinstance(store.delete_many(["a"])[0].error, StoreError)


def test_calls_are_noted_in_order() -> None:
    store = _holding([Fault("read", "raise")])

    store.write("a", [b"0"])
    store.read_many([RangeRead("a", 0, []), RangeRead("b", 0, [])])
    list(store.list_keys("a"))

    assert store.calls == [
        Call("write", "a"), Call("read_many", ""), Call("read", "a"), Call("read", "b"), Call("list", "a")
    ]  # fmt: skip


def test_a_delay_holds_its_call_until_the_gate_opens() -> None:
    gate = Gate()
    store = _holding([Fault("read", "delay", key="slow", gate=gate)], slow=b"0", other=b"1")

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(_read, store, "slow", 1)
        assert gate.entered.wait(60)
        assert _read(store, "other", 1) == b"1"
        assert not held.done()
        gate.open()

    assert held.result() == b"0"


def test_a_delayed_call_meets_the_next_fault_of_the_script() -> None:
    gate = Gate()
    gate.open()
    store = _holding([Fault("read", "delay", gate=gate), Fault("read", "miss")], a=b"0")

    assert _read(store, "a", 1) is None


def test_a_gate_that_nobody_opens_does_not_hang() -> None:
    store = _holding([Fault("stat", "delay", gate=Gate(deadline_s=0))])

    with pytest.raises(TimeoutError):
        store.stat("a")


def test_a_store_can_be_mended() -> None:
    store = _holding([Fault("stat", "raise")], a=b"0")
    with pytest.raises(StoreUnavailable):
        store.stat("a")

    store.rescript([])

    assert store.stat("a") is not None


@pytest.mark.parametrize(
    ("op", "kind", "nth"),
    [("write", "miss", None), ("stat", "corrupt", None), ("read", "delay", None), ("read", "miss", 0)],
)
def test_a_fault_that_cannot_happen_is_refused(op: Op, kind: Kind, nth: int | None) -> None:
    with pytest.raises(ValueError, match=r"no fault|needs a gate|counts from 1"):
        Fault(op, kind, nth=nth)
