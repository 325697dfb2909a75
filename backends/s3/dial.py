"""A connection to the service, through a proxy and TLS where needed, within a deadline."""

from __future__ import annotations

import base64
import io
import socket
import ssl
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse

from hicache_storage.backends.s3.patience import left_s
from hicache_storage.backends.sockets import connect


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy; *user* is ``name:password``."""

    host: str
    port: int
    user: str | None = field(repr=False)

    @property
    def authorization(self) -> str | None:
        return None if self.user is None else f"Basic {base64.b64encode(self.user.encode()).decode()}"


@dataclass(frozen=True, slots=True)
class Route:
    """How to reach the service; no TLS context = plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    proxy: Proxy | None


def dial(route: Route, ends_at: float) -> socket.socket:
    """Return a new connection, its TLS handshake done.

    Raises:
        OSError: refused, unreachable, not trusted, or not done by *ends_at*.
    """
    first = route if route.proxy is None else route.proxy
    connection = connect(first.host, first.port, lambda: left_s(ends_at))
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if route.tls is None:
            return connection
        if route.proxy is not None:
            _tunnel(connection, route, route.proxy, ends_at)
        connection.settimeout(left_s(ends_at))
        return route.tls.wrap_socket(connection, server_hostname=route.host)
    except BaseException:
        connection.close()
        raise


class _Said(io.RawIOBase):
    """What comes on a connection until *ends_at*. To `http.client` it is the socket."""

    def __init__(self, connection: socket.socket, ends_at: float) -> None:
        self._connection = connection
        self._ends_at = ends_at

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # the stub says any buffer; it is a memoryview
        self._connection.settimeout(left_s(self._ends_at))
        return self._connection.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:  # noqa: ARG002 - always "rb"
        return io.BufferedReader(self)


def _tunnel(connection: socket.socket, route: Route, proxy: Proxy, ends_at: float) -> None:
    host = f"[{route.host}]" if ":" in route.host else route.host
    lines = [f"CONNECT {host}:{route.port} HTTP/1.1", f"Host: {host}:{route.port}"]
    if proxy.authorization is not None:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    connection.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode())
    response = HTTPResponse(_Said(connection, ends_at), method="CONNECT")  # type: ignore[arg-type]  # all that it uses
    try:
        response.begin()
    except HTTPException as error:
        raise ConnectionError(f"the proxy gave no answer to CONNECT: {error!r}") from error
    finally:
        response.close()
    if response.status != 200:
        raise ConnectionError(f"the proxy refused to connect: {response.status} {response.reason}")
