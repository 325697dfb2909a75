"""What the SDK does after nobody waits for it any more reaches neither the caller's memory nor the store."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from hicache_storage.backends.mooncake import MooncakeOptions, MooncakeStore
from hicache_storage.backends.mooncake.engine import engine_for
from hicache_storage.deadline import within
from hicache_storage.errors import StoreUnavailable
from hicache_storage.layout.trailer import BlockHasher
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.types import ObjectWrite, RangeRead, Status
from tests.backends.mooncake.fake_sdk import FakeClient, Gate

_NBYTES = 1_000_001
_BODY = body_of("late", _NBYTES)
_SHORT_S = 0.2
"""A deadline that is to pass."""

_PATIENT_S = 30.0
"""One that a busy machine does not reach."""

OpenStore = Callable[..., MooncakeStore]


def fails_late(gate: Gate, call: Callable[[], object]) -> None:
    """*call* has failed at its deadline while the SDK has it. On a busy machine the deadline may be over before."""
    while True:
        with within(_SHORT_S), pytest.raises(StoreUnavailable):
            call()
        if gate.has_one(5.0):
            return


@pytest.fixture
def fake() -> FakeClient:
    return FakeClient({"k": _BODY + b"\0", "other": b"0123\0"})


@pytest.fixture
def open_store(fake: FakeClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenStore]:
    """Stores on the fake; every one has an engine of its own, because no other has its number of bytes."""
    numbers = itertools.count()

    def open_one(**special: object) -> MooncakeStore:
        given = {"master_server_address": "127.0.0.1:1", "key_prefix": "", "deadline_s": _PATIENT_S, "io_threads": 2}
        unique = {"local_hostname": f"{id(fake)}-{next(numbers)}"}
        options = MooncakeOptions(**(given | unique | special))  # type: ignore[arg-type]
        monkeypatch.setattr(engine_for(options), "_client", fake)
        return MooncakeStore(options)

    yield open_one
    for gate in fake.gates.values():
        gate.open()


def test_a_late_read_never_writes_into_the_callers_memory(fake: FakeClient, open_store: OpenStore) -> None:
    gate = fake.gates["get"] = Gate()
    store = open_store()
    target = poisoned(_NBYTES)

    fails_late(gate, lambda: store.read_into("k", 0, [target]))
    gate.open()
    fake.wait_for_end("get")

    assert target == poisoned(_NBYTES)


def test_a_late_write_is_never_published(fake: FakeClient, open_store: OpenStore) -> None:
    gate = fake.gates["put"] = Gate()
    store = open_store()

    fails_late(gate, lambda: store.write("new", [_BODY]))
    gate.open()
    fake.wait_for_end("revoke")

    assert "new" not in fake.bodies
    assert "end" not in fake.ended


def test_a_late_write_from_registered_memory_is_never_published(fake: FakeClient, open_store: OpenStore) -> None:
    gate = fake.gates["put"] = Gate()
    store = open_store()
    source = bytearray(_BODY)
    store.register_memory(source)

    fails_late(gate, lambda: store.write("new", [source]))
    source[:] = poisoned(_NBYTES)
    gate.open()
    fake.wait_for_end("revoke")

    assert "new" not in fake.bodies


def test_a_read_into_registered_memory_does_not_leave_before_the_sdk(fake: FakeClient, open_store: OpenStore) -> None:
    store = open_store()
    target = poisoned(_NBYTES)
    store.register_memory(target)
    assert store.read_into("k", 0, [poisoned(1)])  # The node is known to answer, so that reads go directly.
    gate = fake.gates["get"] = Gate()

    def read() -> None:
        with within(_SHORT_S):
            store.read_many([RangeRead("k", 0, [target])])

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        while not gate.has_one(_SHORT_S):
            if reading.done():  # On a busy machine the deadline may be over before the SDK has been asked.
                reading = pool.submit(read)
        with pytest.raises(TimeoutError):
            reading.result(3 * _SHORT_S)
        assert target == poisoned(_NBYTES)
        gate.open()
        reading.result(_PATIENT_S)

    fake.gates.clear()
    assert fake.ended == ["get", "get"]


def test_reads_into_registered_memory_can_keep_the_deadline(fake: FakeClient, open_store: OpenStore) -> None:
    store = open_store(direct_reads=False)
    target = poisoned(_NBYTES)
    store.register_memory(target)
    assert store.read_into("k", 0, [poisoned(1)])
    gate = fake.gates["get"] = Gate()

    fails_late(gate, lambda: store.read_into("k", 0, [target]))
    gate.open()

    assert target == poisoned(_NBYTES)


def test_a_stuck_call_leaves_the_other_threads_to_others(fake: FakeClient, open_store: OpenStore) -> None:
    gate = fake.gates["put"] = Gate()
    store = open_store()

    fails_late(gate, lambda: store.write("new", [_BODY]))

    assert store.read_into("other", 0, [poisoned(4)])
    assert store.exists_many(["k", "nope"])[0].status is Status.HIT


def test_only_one_call_at_a_time_tries_a_node_that_has_not_answered(fake: FakeClient, open_store: OpenStore) -> None:
    gate = fake.gates["get"] = Gate()
    store = open_store(io_threads=4)
    fails_late(gate, lambda: store.read_into("k", 0, [poisoned(1)]))

    with within(_SHORT_S), pytest.raises(StoreUnavailable):
        store.read_into("other", 0, [poisoned(4)])

    assert not gate.has_one(0)


def test_when_every_thread_is_stuck_requests_fail_at_their_deadline(fake: FakeClient, open_store: OpenStore) -> None:
    gate = fake.gates["put"] = Gate()
    store = open_store()
    for key in ("new-0", "new-1"):
        fails_late(gate, partial(store.write, key, [_BODY]))

    with within(_SHORT_S):
        [outcome] = store.exists_many(["k"])

    assert isinstance(outcome.error, StoreUnavailable)
    gate.open()
    fake.wait_for_end("revoke")


def test_a_stuck_calls_buffer_is_given_to_nobody(fake: FakeClient, open_store: OpenStore) -> None:
    stuck = fake.gates["get"] = Gate()
    store = open_store()
    first = poisoned(_NBYTES)
    fails_late(stuck, lambda: store.read_into("k", 0, [first]))

    # It ends while this one is on its way; if they shared a buffer, it would be overwritten.
    fake.gates["put"] = Gate()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(store.write_many, [ObjectWrite("new", [body_of("new", _NBYTES)])])
        fake.gates["put"].wait_for_one()
        stuck.open()
        fake.wait_for_end("get")
        fake.gates["put"].open()
        [outcome] = writing.result(_PATIENT_S)

    assert outcome.status is Status.STORED or "new" not in fake.bodies
    assert fake.bodies.get("new", b"\0")[:-1] in {b"", body_of("new", _NBYTES)}


def test_an_object_that_was_replaced_while_it_was_read_is_read_again(fake: FakeClient, open_store: OpenStore) -> None:
    gate = fake.gates["get"] = Gate()
    store = open_store()
    target = poisoned(_NBYTES)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(store.read_into, "k", 0, [target])
        gate.wait_for_one()
        del fake.bodies["k"]
        fake.bodies["k"] = body_of("replacement", _NBYTES) + b"\0"
        gate.open()
        assert reading.result(_PATIENT_S)

    assert target == body_of("replacement", _NBYTES)


def test_what_a_reader_hashed_of_an_object_that_was_replaced_meanwhile_is_hashed_again(
    fake: FakeClient, open_store: OpenStore
) -> None:
    replacement = body_of("replacement", _NBYTES)
    stored = replacement + b"\0"
    store = open_store(local_buffer_nbytes=1 << 20)  # half of it a thread: the object comes in two pieces
    target = bytearray(_NBYTES)
    hasher = BlockHasher(memoryview(target), 4096, seed=0)

    def replace_and_hash(nbytes: int) -> None:
        fake.bodies["k"] = stored
        hasher.advance(nbytes)

    [outcome] = store.read_many([RangeRead("k", 0, [target], None, replace_and_hash)])

    assert (outcome.status, bytes(target)) == (Status.HIT, replacement)
    assert hasher.packed() == BlockHasher(memoryview(replacement), 4096, seed=0).packed()


def test_an_object_that_was_removed_while_it_was_read_is_a_miss(fake: FakeClient, open_store: OpenStore) -> None:
    gate = fake.gates["get"] = Gate()
    store = open_store()

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(store.read_into, "k", 0, [poisoned(_NBYTES)])
        gate.wait_for_one()
        del fake.bodies["k"]
        gate.open()

        assert reading.result(_PATIENT_S) is False
