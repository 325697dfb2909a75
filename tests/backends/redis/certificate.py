"""TLS in front of a server that has none: a certificate for loopback, and a terminator that decrypts and passes on."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from pathlib import Path
from types import TracebackType
from typing import Self


class TLSTerminator:
    """Listens on loopback with TLS and passes what comes, decrypted, to the server at *port*, and its answers back."""

    def __init__(self, port: int, certificate: Path, key: Path, *, client_ca: Path | None = None) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        if client_ca is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(client_ca)
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def url(self) -> str:
        return f"rediss://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(plain,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            plain,
            self._context.wrap_socket(plain, server_side=True) as client,
            socket.create_connection(("127.0.0.1", self._port)) as server,
        ):
            self._open += [client, server]
            _pass_on(client, server)

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sock in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(60)


def _pass_on(client: ssl.SSLSocket, server: socket.socket) -> None:
    """Pass everything on, both ways, until one side ends. One thread: a TLS connection is not for two at once."""
    others = {client: server, server: client}
    while True:
        readable = [client] if client.pending() else select.select([client, server], [], [])[0]
        for source in readable:
            data = source.recv(65536)
            if not data:
                return
            others[source].sendall(data)
