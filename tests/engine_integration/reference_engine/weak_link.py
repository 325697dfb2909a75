"""The way to a server, for tests that make it slow, silent or cut while it is used."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

_CHUNK_NBYTES = 1 << 16


class WeakLink:
    """A port of the loopback interface that leads to another one. Use as a context manager.

    What is sent while the link is silent arrives once it is not any more; what is sent while it is cut is lost.

    It stays at the same address when it was cut and mended.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._changed = threading.Condition()
        self._delay_s = 0.0
        self._is_silent = False
        # Bound for as long as the link lives, so that nobody else gets the port while the link is cut.
        self._place = deaf_socket()
        self._port: int = self._place.getsockname()[1]
        self._listener = _listen(self._port)
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._accepting = self._start(self._accept, self._listener)

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self._port}"

    def slow_down(self, delay_s: float) -> None:
        """Let whatever is sent, up to 64 KiB of it, arrive *delay_s* later; 0 for as soon as it can."""
        self._delay_s = delay_s

    def fall_silent(self) -> None:
        """Accept connections and pass nothing on."""
        self._is_silent = True

    def speak(self) -> None:
        """Pass on what has come, and what comes."""
        with self._changed:
            self._is_silent = False
            self._changed.notify_all()

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        # Closing alone wakes nobody: whoever stands in `accept` would take one more, and keep the port.
        _break(self._listener)
        self._accepting.join()
        with self._changed:
            broken, self._open = self._open, set()
            self._changed.notify_all()
        for end in broken:
            _break(end)

    def mend(self) -> None:
        """Accept connections again."""
        self._listener = _listen(self._port)
        self._accepting = self._start(self._accept, self._listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        self._place.close()
        for thread in self._threads:
            thread.join()

    def _start(self, target: object, *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._server_port))
                except OSError:
                    client.close()
                    continue
                with self._changed:
                    self._open |= {client, server}
                self._start(self._pump, client, server)
                self._start(self._pump, server, client)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_NBYTES):
                with self._changed:
                    self._changed.wait_for(lambda: not self._is_silent or source not in self._open)
                    self._changed.wait_for(lambda: source not in self._open, self._delay_s)
                target.sendall(data)
        _break(target)
        _break(source)


def deaf_socket() -> socket.socket:
    """Return a socket that has a port of the loopback interface to itself and refuses every connection."""
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    deaf.bind(("127.0.0.1", 0))
    return deaf


def _listen(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port), backlog=64)


def _break(end: socket.socket) -> None:
    """Wake whoever waits for *end*, and close it."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
