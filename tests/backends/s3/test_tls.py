"""TLS, on the real server, and proxies."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hicache_storage.backends.s3 import S3Store
from hicache_storage.errors import StoreError, StoreUnavailable
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.types import HIT, STORED, ObjectWrite, RangeRead, WriteResult
from tests.backends.s3.services import S3Service
from tests.backends.s3.stub import Stub

pytest_plugins = ["tests.backends.s3.fixtures"]

_PATIENT_S = 60.0


@pytest.fixture(autouse=True)
def _no_proxies_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """In capitals they hold as well."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def test_objects_travel_over_tls(s3: S3Service) -> None:
    options = s3.options(tls=True, multipart_threshold_nbytes=5 << 20, part_nbytes=5 << 20)
    bodies = {f"k{i}": body_of(f"k{i}", nbytes) for i, nbytes in enumerate([0, 5, 300_000, 6 << 20])}
    targets = {key: poisoned(len(body)) for key, body in bodies.items()}
    middle = poisoned(1000)

    with S3Store(options) as store:
        stored = store.write_many([ObjectWrite(key, [body[:2], body[2:]]) for key, body in bodies.items()])
        read = store.read_many([RangeRead(key, 0, [target]) for key, target in targets.items()])
        assert store.read_into("k2", 150_000, [middle], object_nbytes=300_000)
        listed = {info.key: info.nbytes for info in store.list_keys()}
        observed = {key: s3.observe(options, key) for key in bodies}
        deleted = store.delete_many(list(bodies))

    assert (stored, read, deleted) == ([STORED] * 4, [HIT] * 4, [HIT] * 4)
    assert observed == bodies
    assert targets == bodies
    assert middle == bodies["k2"][150_000:151_000]
    assert listed == {key: len(body) for key, body in bodies.items()}
    assert s3.names(options) == []


@pytest.mark.parametrize(
    "given",
    [
        {"sse_customer_key": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="},
        {"storage_class": "STANDARD_IA"},
        {"request_checksum_calculation": "when_supported", "response_checksum_validation": "when_supported"},
        {"sign_payload": True},
    ],
    ids=lambda given: next(iter(given)),
)
@pytest.mark.parametrize("nbytes", [5, 6 << 20])
def test_a_real_server_takes_what_an_option_adds(s3: S3Service, given: dict[str, object], nbytes: int) -> None:
    body = body_of("option", nbytes)
    target = poisoned(nbytes)

    with S3Store(s3.options(tls=True, multipart_threshold_nbytes=1 << 20, part_nbytes=5 << 20, **given)) as store:
        assert store.write("k", [body]) is WriteResult.STORED
        assert store.read_into("k", 0, [target], object_nbytes=nbytes)

    assert target == body


def test_a_certificate_that_nobody_vouches_for_is_refused(s3: S3Service) -> None:
    options = s3.options(tls=True, ca_bundle=None)

    with S3Store(options) as store, pytest.raises(StoreError, match="ca_bundle") as caught:
        store.stat("k")

    assert not caught.value.retryable


def test_a_certificate_need_not_be_checked(s3: S3Service) -> None:
    options = s3.options(tls=True, ca_bundle=None, verify_tls=False)

    with S3Store(options) as store:
        assert store.stat("missing") is None


def test_a_server_without_tls_is_unavailable_over_tls(s3: S3Service) -> None:
    options = s3.options(endpoint_url=s3.server.endpoint_url.replace("http:", "https:"))

    with S3Store(options) as store, pytest.raises(StoreUnavailable):
        store.stat("k")


@contextmanager
def _proxy(said: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Give the port of a proxy for one CONNECT, which it answers with *said*, and what it was asked."""
    asked: list[bytes] = []

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # One side may hang up first.
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(1 << 16))
            connection.sendall(said)
            if b" 200 " not in said:
                return
            host, _, port = asked[0].split()[1].decode().rpartition(":")
            with socket.create_connection((host, int(port))) as onward:
                back = threading.Thread(target=pump, args=(onward, connection))
                back.start()
                pump(connection, onward)
                back.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], asked
        thread.join(_PATIENT_S)
        assert not thread.is_alive()


def test_tls_goes_through_a_tunnel_of_the_proxy(
    tls_stub: Stub, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with _proxy(b"HTTP/1.1 200 Connection established\r\n\r\n") as (port, asked):
        monkeypatch.setenv("https_proxy", f"http://user:word@127.0.0.1:{port}")
        with S3Store(tls_stub.options(ca_bundle=str(certificate[0]), io_threads=1)) as store:
            store.write("k", [b"0123"])

    assert tls_stub.objects == {"/bucket/k": b"0123"}
    [request] = asked
    assert request.startswith(f"CONNECT {tls_stub.url.removeprefix('https://')} HTTP/1.1\r\n".encode())
    assert b"Proxy-Authorization: Basic dXNlcjp3b3Jk\r\n" in request


@pytest.mark.parametrize("said", [b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", b"", b"nonsense\r\n\r\n"])
def test_a_proxy_that_refuses_is_named(
    tls_stub: Stub, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    with _proxy(said) as (port, _):
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        options = tls_stub.options(ca_bundle=str(certificate[0]))
        with S3Store(options) as store, pytest.raises(StoreUnavailable, match="proxy"):
            store.stat("k")


def test_a_proxy_that_never_comes_to_an_end_costs_the_deadline(
    tls_stub: Stub, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, all of them never."""
    given_up = threading.Event()

    def trickle() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                for _ in range(6000):
                    connection.sendall(b"H")
                    if given_up.wait(0.01):
                        return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
        options = tls_stub.options(ca_bundle=str(certificate[0]), deadline_s=0.5)
        with S3Store(options) as store, pytest.raises(StoreUnavailable, match="TimeoutError"):
            store.stat("k")
        given_up.set()
        listener.shutdown(socket.SHUT_RDWR)  # On a busy machine the deadline may be over before anybody came.
        thread.join(_PATIENT_S)

    assert not thread.is_alive()


def test_plain_requests_are_handed_to_the_proxy_whole(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", stub.url.replace("//", "//user:word@"))

    with S3Store(stub.options(endpoint_url="http://s3.example.org", addressing="path")) as store:
        store.write("k", [b"0123"])

    put = stub.seen[-1]
    assert put.path == "http://s3.example.org/bucket/k"
    assert put.headers["Host"] == "s3.example.org"
    assert put.headers["Proxy-Authorization"] == "Basic dXNlcjp3b3Jk"
