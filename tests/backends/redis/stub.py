"""A server that misbehaves on purpose: it answers each command as its script says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

Answer = Callable[[socket.socket, list[bytes]], None]
"""Writes what the server says to one command; closes the connection by raising `OSError`."""


class StubRedis:
    """Listens on loopback and lets *answer* speak for it. Handshake commands are answered properly.

    Attributes:
        commands: every command that came, in order.
        connections: how many connections were accepted.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.commands: list[list[bytes]] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._ends = threading.Event()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def wait_for_end(self) -> None:
        """Return when the test is over: what a silent server does."""
        self._ends.wait()

    def _accept(self) -> None:
        while not self._ends.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as lines:
            while line := lines.readline():
                words = []
                for _ in range(int(line[1:])):
                    length = int(lines.readline()[1:])
                    words.append(lines.read(length + 2)[:-2])
                self.commands.append(words)
                if words[0] in (b"CLIENT", b"SELECT", b"HELLO"):
                    connection.sendall(b"+OK\r\n")
                else:
                    self.answer(connection, words)

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        for sock in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(60)
