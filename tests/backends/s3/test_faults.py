"""Servers that are silent, slow, gone or back, and clients that are many, forked or closed."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
from tests.backends.s3.stub import IO_THREADS, Stub

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


_DEADLINE_S = 0.2
_AT_MOST_S = 100 * _DEADLINE_S
"""What a silent server may cost on however busy a machine."""


@contextmanager
def _costs_a_deadline() -> Iterator[None]:
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < _AT_MOST_S


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and requests, and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener


@pytest.fixture
def silent_url(silent: socket.socket) -> str:
    return _url_of(silent)


def _url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def _connections(listener: socket.socket) -> int:
    """Return how many connections nobody has accepted yet."""
    number = 0
    listener.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            number += 1
    return number


@contextmanager
def _speaking(speak: Callable[[socket.socket], None]) -> Iterator[str]:
    """Give the URL of a server that hands its first connection to *speak*; its client may hang up."""

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                speak(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield _url_of(listener)
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("call", _CALLS)
def test_a_silent_server_costs_the_deadline(stub: Stub, silent_url: str, call: str) -> None:
    options = stub.options(endpoint_url=silent_url, deadline_s=_DEADLINE_S)

    with S3Store(options) as store, _costs_a_deadline(), pytest.raises(StoreUnavailable):
        _CALLS[call](store)


@pytest.mark.parametrize("call", _BATCHES)
def test_a_silent_server_costs_a_batch_the_deadline_once(stub: Stub, silent: socket.socket, call: str) -> None:
    with S3Store(stub.options(endpoint_url=_url_of(silent), deadline_s=_DEADLINE_S)) as store:
        outcomes = _BATCHES[call](store)

    assert {type(outcome.error) for outcome in outcomes} == {StoreUnavailable}
    # A request that waited again would have a connection of its own: 32, and not one for each thread.
    assert _connections(silent) <= IO_THREADS


def test_an_outer_deadline_is_kept(stub: Stub, silent_url: str) -> None:
    options = stub.options(endpoint_url=silent_url, deadline_s=60)

    with S3Store(options) as store, _costs_a_deadline(), within(_DEADLINE_S):
        assert not any(store.exists_many(_KEYS))


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 206 Partial Content\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"]
)
def test_a_server_that_drips_costs_the_deadline(stub: Stub, sent: bytes) -> None:
    # Each receive gets something in time; only a deadline for all of them together ends this.
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(sent or b"H")
        while not over.wait(0.02):
            connection.sendall(b"x")

    with _speaking(drip) as url, S3Store(stub.options(endpoint_url=url, deadline_s=_DEADLINE_S)) as store:
        try:
            with _costs_a_deadline(), pytest.raises(StoreUnavailable):
                store.read_into("k", 0, [bytearray(9999)])
        finally:
            over.set()


def test_a_server_that_does_not_take_the_body_costs_the_deadline(stub: Stub, silent_url: str) -> None:
    options = stub.options(endpoint_url=silent_url, deadline_s=_DEADLINE_S, conditional_put="always")

    with S3Store(options) as store, _costs_a_deadline(), pytest.raises(StoreUnavailable):
        store.write("k", [bytes(32 << 20)])


@pytest.mark.parametrize(
    "said", [b"", b"SSH-2.0-nonsense\r\n", b"HTTP/1.1 xyz\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000]
)
def test_what_is_no_http_is_unavailable(stub: Stub, said: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(said)

    with _speaking(answer) as url, S3Store(stub.options(endpoint_url=url)) as store, pytest.raises(StoreUnavailable):
        store.read_into("k", 0, [bytearray(1)])


def test_a_paused_server_costs_the_deadline_and_others_go_on_afterwards(s3: S3Service) -> None:
    options = s3.options()
    for key in _KEYS:
        s3.plant(options, key, b"x")

    with S3Store(options) as store:
        assert all(store.exists_many(_KEYS))
        s3.server.pause()
        try:
            with _costs_a_deadline(), within(_DEADLINE_S):
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

    concerned = [record for record in caplog.records if record.name.startswith(("hicache_storage", "boto", "urllib3"))]
    assert [record.getMessage() for record in concerned] == []


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
