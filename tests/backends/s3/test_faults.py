"""Servers that are silent, slow, gone or back, and clients that are many, forked or closed."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from hicache_storage.backends.s3 import S3Store
from hicache_storage.deadline import within
from hicache_storage.errors import StoreError, StoreUnavailable
from hicache_storage.store import ObjectStore
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.testing.hooks import at_once, fetched
from hicache_storage.types import HIT, MISS, ObjectWrite, Outcome, RangeRead, Status, WriteResult
from tests.backends.s3.services import S3Service
from tests.backends.s3.stub import Stub

pytest_plugins = ["tests.backends.s3.fixtures"]

_KEYS = [f"k{i}" for i in range(32)]

_CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "write": lambda store: store.write("k", [b"x"]),
    "read": lambda store: store.read_into("k", 0, [bytearray(1)]),
    "stat": lambda store: store.stat("k"),
    "delete": lambda store: store.delete("k"),
    "list": lambda store: list(store.list_keys()),
}

_BATCHES: dict[str, Callable[[ObjectStore], list[Outcome]]] = {
    "read_many": lambda store: store.read_many([RangeRead(key, 0, [bytearray(1)]) for key in _KEYS]),
    "write_many": lambda store: store.write_many([ObjectWrite(key, [b"x"]) for key in _KEYS]),
    "exists_many": lambda store: store.exists_many(_KEYS),
    "delete_many": lambda store: store.delete_many(_KEYS),
}


@contextmanager
def _less_than(seconds: float) -> Iterator[None]:
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < seconds


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A server that accepts connections and requests, and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("call", _CALLS)
def test_a_silent_server_costs_the_deadline(stub: Stub, silent_url: str, call: str) -> None:
    options = stub.options(endpoint_url=silent_url, deadline_s=0.2)

    with S3Store(options) as store, _less_than(1), pytest.raises(StoreUnavailable):
        _CALLS[call](store)


@pytest.mark.parametrize("call", _BATCHES)
def test_a_silent_server_costs_a_batch_the_deadline_once(stub: Stub, silent_url: str, call: str) -> None:
    # 32 requests on 4 threads: eight deadlines, if each had its own.
    with S3Store(stub.options(endpoint_url=silent_url, deadline_s=0.2)) as store, _less_than(1):
        outcomes = _BATCHES[call](store)

    assert {type(outcome.error) for outcome in outcomes} == {StoreUnavailable}


def test_an_outer_deadline_is_kept(stub: Stub, silent_url: str) -> None:
    with S3Store(stub.options(endpoint_url=silent_url, deadline_s=60)) as store, within(0.2), _less_than(1):
        assert not any(store.exists_many(_KEYS))


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 206 Partial Content\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"]
)
def test_a_server_that_drips_costs_the_deadline(stub: Stub, sent: bytes) -> None:
    # Each receive gets something in time; only a deadline for all of them together ends this.
    over = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(sent or b"H")
            while not over.wait(0.02):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with S3Store(stub.options(endpoint_url=url, deadline_s=0.3)) as store, _less_than(1.5):
            try:
                with pytest.raises(StoreUnavailable):
                    store.read_into("k", 0, [bytearray(9999)])
            finally:
                over.set()
                thread.join()


def test_a_server_that_does_not_take_the_body_costs_the_deadline(stub: Stub, silent_url: str) -> None:
    options = stub.options(endpoint_url=silent_url, deadline_s=0.2, conditional_put="always")

    with S3Store(options) as store, _less_than(1), pytest.raises(StoreUnavailable):
        store.write("k", [bytes(32 << 20)])


@pytest.mark.parametrize(
    "said", [b"", b"SSH-2.0-nonsense\r\n", b"HTTP/1.1 xyz\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000]
)
def test_what_is_no_http_is_unavailable(stub: Stub, said: bytes) -> None:
    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with S3Store(stub.options(endpoint_url=url)) as store, pytest.raises(StoreUnavailable):
            store.read_into("k", 0, [bytearray(1)])
        thread.join()


def test_a_paused_server_costs_the_deadline_and_others_go_on_afterwards(s3: S3Service) -> None:
    options = s3.options(deadline_s=1.0)
    for key in _KEYS:
        s3.plant(options, key, b"x")

    with S3Store(options) as store:
        assert all(store.exists_many(_KEYS))
        s3.server.pause()
        try:
            with _less_than(2):
                outcomes = _BATCHES["read_many"](store)
        finally:
            s3.server.resume()

        assert {type(outcome.error) for outcome in outcomes} == {StoreUnavailable}
        assert _BATCHES["read_many"](store) == [HIT] * 32


def test_a_killed_server_gives_failures_and_comes_back(s3: S3Service) -> None:
    options = s3.options()
    body = body_of("back", 100_000)

    with S3Store(options) as store:
        store.write("k", [body])
        s3.server.kill()
        try:
            for call in _CALLS.values():
                with pytest.raises(StoreUnavailable):
                    call(store)
            for batch in _BATCHES.values():
                assert {outcome.status for outcome in batch(store)} == {Status.FAILED}
        finally:
            s3.server.start()

        assert fetched(store, "k", 0, len(body)) == body
        assert store.write("new", [b"x"]) is WriteResult.STORED


def test_first_use_by_many_threads_at_once_is_quiet(s3: S3Service, caplog: pytest.LogCaptureFixture) -> None:
    # Field fault F30: races in making clients, and pools that are smaller than their users.
    body = body_of("many", 5000)

    def use(store: S3Store, i: int) -> bool:
        store.write(f"k{i}", [body])
        return fetched(store, f"k{i}", 0, len(body)) == body

    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            with S3Store(s3.options()) as store:
                assert at_once(*[partial(use, store, i) for i in range(32)]) == [True] * 32

    assert [record.getMessage() for record in caplog.records] == []


def test_stores_may_be_made_by_many_threads_at_once(stub: Stub) -> None:
    stores = at_once(*[partial(S3Store, stub.options()) for _ in range(12)])

    assert [store.stat("missing") for store in stores] == [None] * 12
    for store in stores:
        store.close()


def test_connections_are_kept(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    connect = socket.socket.connect

    def counted(self: socket.socket, address: tuple[str, int]) -> None:
        made.append(address)
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", counted)

    with S3Store(stub.options()) as store:
        for key in _KEYS[:3]:
            store.write_many([ObjectWrite(f"{key}-{i}", [b"x"]) for i in range(8)])
            store.read_many([RangeRead(f"{key}-{i}", 0, [bytearray(1)]) for i in range(8)])
            store.exists_many([key, "missing"])
            store.read_into("missing", 0, [bytearray(1)])

    assert 1 <= len(made) <= 4


def test_a_forked_child_has_connections_of_its_own(s3: S3Service) -> None:
    options = s3.options()
    body = body_of("fork", 200_000)

    with S3Store(options) as store:
        store.write_many([ObjectWrite(key, [body]) for key in _KEYS])
        child = os.fork()
        if child == 0:
            os._exit(0 if _reads_all(store, body) else 1)
        here = _reads_all(store, body)
        _, status = os.waitpid(child, 0)

    assert here
    assert status == 0


def _reads_all(store: ObjectStore, body: bytes) -> bool:
    targets = [poisoned(len(body)) for _ in _KEYS]
    outcomes = store.read_many([RangeRead(key, 0, [target]) for key, target in zip(_KEYS, targets, strict=True)])
    return outcomes == [HIT] * len(_KEYS) and targets == [body] * len(_KEYS)


def test_a_failure_of_one_request_leaves_its_neighbours_alone(stub: Stub) -> None:
    stub.objects |= {f"/bucket/{key}": b"x" for key in _KEYS[:-1]}

    with S3Store(stub.options()) as store:
        outcomes = store.read_many([RangeRead(key, 0, [bytearray(1)]) for key in [*_KEYS, "", "k0"]])

    assert outcomes[:31] == [HIT] * 31
    assert outcomes[31] == MISS
    assert isinstance(outcomes[32].error, StoreError)
    assert outcomes[33] == HIT
