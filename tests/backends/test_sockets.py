"""A host of several addresses: each has its share of the time, and no socket is left behind."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hicache_storage.backends.sockets import connect
from hicache_storage.testing.services.process import ReservedPort

Address = tuple[str, int]


class NoTime(Exception):
    """What a caller raises whose time is over."""


@pytest.fixture
def silent() -> Iterator[Address]:
    """An address that answers nobody: what is not accepted fills its queue."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as waiting:
        for _ in range(8):
            caller = waiting.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield listener.getsockname()


def name(addresses: list[Address], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


def test_a_silent_address_leaves_time_for_the_next(silent: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        name([silent, listener.getsockname()], monkeypatch)

        with connect("many.example", 1, lambda: 0.4) as connection:
            assert connection.getpeername() == listener.getsockname()
            assert connection.gettimeout() == 0.4


def test_what_the_last_address_said_is_raised(silent: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = ReservedPort()
    name([silent, ("127.0.0.1", nobody.number)], monkeypatch)

    with pytest.raises(ConnectionRefusedError):
        connect("many.example", 1, lambda: 0.2)


def test_a_host_without_an_address_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    name([], monkeypatch)

    with pytest.raises(OSError, match=r"many\.example has no address"):
        connect("many.example", 1, lambda: 1.0)


def test_when_no_time_is_left_no_socket_is_left_either(silent: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    class Noted(socket.socket):
        def __init__(self, *given: int) -> None:
            super().__init__(*given)
            made.append(self)

    def no_time() -> float:
        raise NoTime

    name([silent], monkeypatch)
    monkeypatch.setattr(socket, "socket", Noted)

    with pytest.raises(NoTime):
        connect("many.example", 1, no_time)

    assert [sock.fileno() for sock in made] == [-1]
