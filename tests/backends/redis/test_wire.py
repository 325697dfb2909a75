from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from hicache_storage.backends.redis.errors import ConnectionLost, ReplyError
from hicache_storage.backends.redis.wire import Patience, Wire
from hicache_storage.deadline import within
from hicache_storage.testing.bodies import body_of, poisoned


@pytest.fixture
def ends() -> Iterator[tuple[Wire, socket.socket]]:
    """A wire and the server's end of it."""
    client, server = socket.socketpair()
    wire = Wire(client, Patience(60.0))
    yield wire, server
    wire.close()
    server.close()


def test_answers_of_every_kind_are_read(ends: tuple[Wire, socket.socket]) -> None:
    wire, server = ends
    server.sendall(
        b"+OK\r\n:-7\r\n$3\r\na\r\n\r\n$0\r\n\r\n$-1\r\n*-1\r\n*3\r\n:1\r\n*1\r\n+x\r\n-ERR no\r\n-OOM full\r\n"
    )

    *answers, nested, error = [wire.reply() for _ in range(8)]

    assert answers == [b"OK", -7, b"a\r\n", b"", None, None]
    assert isinstance(nested, list)
    assert nested[:2] == [1, [b"x"]]
    assert isinstance(nested[2], ReplyError)
    assert isinstance(error, ReplyError)
    assert (error.code, str(error)) == ("OOM", "OOM full")
    assert wire.in_order


@pytest.mark.parametrize("step", [1, 2, 3, 7, 16_384])
def test_answers_may_come_in_any_pieces(ends: tuple[Wire, socket.socket], step: int) -> None:
    wire, server = ends
    body = body_of("pieces", 40_000)
    stream = b":12\r\n$40000\r\n" + body + b"\r\n+OK\r\n"

    def send() -> None:
        for start in range(0, len(stream), step):
            server.sendall(stream[start : start + step])

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    target = poisoned(40_000)

    assert wire.took(b":12\r\n$40000\r\n")
    wire.fill([memoryview(target)[:1], memoryview(target)[1:30_000], memoryview(target)[30_000:]])
    assert wire.reply() == b"OK"
    sender.join()
    assert target == body


@pytest.mark.parametrize("said", [b"$-1\r\n", b"$40\r\n", b"-ERR\r\n", b":1\r\n", b"$4\r"], ids=ascii)
def test_what_was_not_taken_is_still_there(ends: tuple[Wire, socket.socket], said: bytes) -> None:
    wire, server = ends
    server.sendall(said)

    assert not wire.took(b"$4000\r\n")

    server.sendall(b"\n" if said.endswith(b"\r") else b"")
    kind, rest = wire.header()
    assert bytes([kind]) + rest == said.strip()


def test_everything_is_sent_whatever_the_kernel_takes_at_once(ends: tuple[Wire, socket.socket]) -> None:
    wire, server = ends
    parts = [body_of(str(i), 1 + 4001 * (i % 7)) for i in range(900)]
    whole = b"".join(parts)
    got = bytearray()

    def receive() -> None:
        while len(got) < len(whole) and (some := server.recv(10_000)):
            got.extend(some)

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()

    wire.send(parts[:300])
    wire.send([memoryview(part) for part in parts[300:]])

    receiver.join()
    assert got == whole


def test_a_stalled_send_ends_with_the_patience(ends: tuple[Wire, socket.socket]) -> None:
    wire, _ = ends
    wire.patience = Patience(0.1)

    with pytest.raises(ConnectionLost) as caught:
        wire.send([bytes(64 << 20)])

    assert caught.value.silent


def test_the_callers_deadline_ends_the_patience_earlier(ends: tuple[Wire, socket.socket]) -> None:
    wire, _ = ends
    with within(0.05):
        wire.patience = Patience(60.0)

    with pytest.raises(ConnectionLost) as caught:
        wire.reply()

    assert caught.value.silent


def test_a_wire_on_which_something_came_or_that_ended_is_not_idle(ends: tuple[Wire, socket.socket]) -> None:
    wire, server = ends
    assert wire.is_idle()

    server.sendall(b"+OK\r\n")
    assert not wire.is_idle()

    assert wire.reply() == b"OK"
    server.close()
    assert not wire.is_idle()
