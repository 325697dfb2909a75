"""What the kit's servers promise to the tests that take them away."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache_storage.errors import StoreUnavailable
from hicache_storage.testing.services.process import ReservedPort, ServiceProcess

# Threads that are never at rest, as those of a busy server.
_BUSY = """
import pathlib, threading
def work():
    while True:
        pow(3, 10**5)
for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
pathlib.Path("ready").touch()
threading.Event().wait()
"""

_IDLE = "import threading; threading.Event().wait()"


@pytest.fixture
def busy() -> Iterator[ServiceProcess]:
    def is_ready() -> bool:
        return (server.folder / "ready").exists()

    server = ServiceProcess("busy", lambda _: [sys.executable, "-c", _BUSY], ready=is_ready)
    with server:
        yield server


def states_of_threads(server: ServiceProcess) -> set[str]:
    assert server._process is not None
    stats = Path(f"/proc/{server._process.pid}/task").glob("*/stat")
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats}


def test_a_paused_server_does_nothing_any_more_when_pausing_it_returns(busy: ServiceProcess) -> None:
    for _ in range(20):
        busy.pause()
        assert states_of_threads(busy) == {"T"}
        busy.resume()


def test_a_server_that_has_ended_may_be_paused(busy: ServiceProcess) -> None:
    busy.kill()

    busy.pause()

    assert not busy.running


def test_a_server_that_ended_is_not_up_because_another_one_answers() -> None:
    server = ServiceProcess("short", lambda _: [sys.executable, "-c", ""], ready=lambda: not server.running)

    with pytest.raises(StoreUnavailable, match="short ended"):
        server.start()


def test_a_reserved_port_is_for_a_server_and_for_nobody_else() -> None:
    port = ReservedPort()
    address = ("127.0.0.1", port.number)

    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        with socket.create_server(address), socket.create_connection(address):
            pass


def test_a_port_is_free_again_when_its_reservation_is_gone() -> None:
    port = ReservedPort()
    address = ("127.0.0.1", port.number)

    del port

    with socket.socket() as other:
        other.bind(address)


def test_a_reserved_port_that_somebody_has_is_refused() -> None:
    port = ReservedPort()

    with pytest.raises(OSError, match="in use"):
        ReservedPort(port.number)


def test_a_start_that_is_interrupted_leaves_no_server() -> None:
    def interrupted() -> bool:
        raise KeyboardInterrupt

    server = ServiceProcess("idle", lambda _: [sys.executable, "-c", _IDLE], ready=interrupted)
    try:
        with pytest.raises(KeyboardInterrupt), server:
            pass

        assert not server.running
        assert not server.folder.exists()
    finally:
        server.stop()
