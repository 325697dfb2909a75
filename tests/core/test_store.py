"""What `ObjectStore` derives from a backend's five methods."""

from __future__ import annotations

import pytest

from hicache_storage.errors import AccessDenied, CorruptObject, StoreFull, StoreUnavailable, Unsupported
from hicache_storage.store import ObjectStore, check_key
from hicache_storage.testing.faults import Call, Fault, FaultyStore
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import (
    ALREADY_THERE,
    HIT,
    MISS,
    STORED,
    Capabilities,
    ObjectWrite,
    RangeRead,
    Status,
    WriteResult,
    failed,
)


@pytest.fixture
def inner() -> MemoryStore:
    store = MemoryStore()
    for key in ("a", "b", "c"):
        store._objects[key] = key.encode() * 4
    return store


def contents(store: MemoryStore) -> dict[str, bytes]:
    return dict(store._objects)


# -- one outcome per request, in order; one bad object never fails its neighbours ----------------


def test_reads_answer_in_request_order(inner: MemoryStore) -> None:
    error = StoreUnavailable("no answer")
    store = FaultyStore(inner, [Fault("read", "raise", key="b", error=error)])
    keys = ["c", "nowhere", "b", "a", "c"]
    targets = [bytearray(2) for _ in keys]

    outcomes = store.read_many([RangeRead(key, 1, [target]) for key, target in zip(keys, targets, strict=True)])

    assert outcomes == [HIT, MISS, failed(error), HIT, HIT]
    assert [bytes(targets[index]) for index in (0, 3, 4)] == [b"cc", b"aa", b"cc"]


def test_a_read_passes_on_the_size_that_the_object_must_have(inner: MemoryStore) -> None:
    good, bad = inner.read_many([RangeRead("a", 0, [bytearray(1)], n) for n in (4, 5)])

    assert good is HIT
    assert bad.status is Status.FAILED
    assert isinstance(bad.error, CorruptObject)


def test_writes_answer_in_request_order(inner: MemoryStore) -> None:
    error = StoreFull("no room")
    store = FaultyStore(inner, [Fault("write", "raise", key="full", error=error)])

    outcomes = store.write_many([ObjectWrite(key, [b"1", b"234"]) for key in ("new", "a", "full", "newer")])

    assert outcomes == [STORED, ALREADY_THERE, failed(error), STORED]
    assert contents(inner) == {"a": b"aaaa", "b": b"bbbb", "c": b"cccc", "new": b"1234", "newer": b"1234"}


def test_existence_answers_in_request_order(inner: MemoryStore) -> None:
    error = AccessDenied("no")
    store = FaultyStore(inner, [Fault("stat", "raise", key="b", error=error)])

    assert store.exists_many(["c", "b", "nowhere", "a"]) == [HIT, failed(error), MISS, HIT]


def test_deletes_answer_in_request_order(inner: MemoryStore) -> None:
    error = AccessDenied("no")
    store = FaultyStore(inner, [Fault("delete", "raise", key="b", error=error)])

    assert store.delete_many(["c", "b", "nowhere", "c"]) == [HIT, failed(error), MISS, MISS]
    assert contents(inner).keys() == {"a", "b"}


def test_touching_says_what_existing_says(inner: MemoryStore) -> None:
    assert ObjectStore.touch_many(inner, ["a", "nowhere"]) == [HIT, MISS]


def test_no_requests_have_no_outcomes(inner: MemoryStore) -> None:
    assert inner.read_many([]) == inner.write_many([]) == inner.exists_many([]) == inner.delete_many([]) == []


def test_a_batch_is_what_its_requests_are(inner: MemoryStore) -> None:
    store = FaultyStore(inner)

    store.exists_many(["a", "b"])

    assert store.calls == [Call("exists_many", ""), Call("stat", "a"), Call("stat", "b")]


def test_what_a_store_did_not_foresee_passes_through(inner: MemoryStore) -> None:
    store = FaultyStore(inner, [Fault("read", "raise", error=ZeroDivisionError("a bug"))])

    with pytest.raises(ZeroDivisionError):
        store.read_many([RangeRead("a", 0, [bytearray(1)])])


def test_quarantine_deletes_where_a_store_keeps_nothing_aside(inner: MemoryStore) -> None:
    assert ObjectStore.quarantine(inner, "a") is True
    assert ObjectStore.quarantine(inner, "a") is False
    assert inner.write("a", [b"new"]) is WriteResult.STORED


def test_a_with_block_closes_the_store_also_when_it_raises(inner: MemoryStore) -> None:
    with pytest.raises(ZeroDivisionError), inner:
        raise ZeroDivisionError

    with pytest.raises(StoreUnavailable):
        inner.stat("a")


def test_registering_memory_is_optional(inner: MemoryStore) -> None:
    buffer = bytearray(8)

    inner.register_memory(buffer)
    inner.unregister_memory(buffer)
    inner.unregister_memory(bytearray(8))


# -- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["k", "../x", "a/b", "a\0b", "ü", "😀", " ", "-" * 5000])
def test_a_key_is_any_text(key: str) -> None:
    assert check_key(key, Capabilities(), backend="demo", op="read") == key.encode()


@pytest.mark.parametrize(("key", "why"), [("", "must not be empty"), ("a\udcff", "cannot be encoded as UTF-8")])
def test_what_is_no_key_is_unsupported(key: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why) as caught:
        check_key(key, Capabilities(), backend="demo", op="read")

    assert (caught.value.backend, caught.value.op) == ("demo", "read")
    str(caught.value).encode()


def test_a_key_is_measured_in_utf8_bytes() -> None:
    limited = Capabilities(max_key_nbytes=4)

    assert check_key("üü", limited, backend="demo", op="read") == "üü".encode()
    with pytest.raises(Unsupported, match="key of 5 bytes, this store takes at most 4"):
        check_key("üüa", limited, backend="demo", op="read")
