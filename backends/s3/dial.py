"""A connection to the service, through a proxy and TLS where needed, within a deadline."""

from __future__ import annotations

import base64
import socket
import ssl
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse

from hicache_storage.backends.s3.patience import left_s


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
    if route.proxy is None:
        connection = _connect(route.host, route.port, ends_at)
    else:
        connection = _connect(route.proxy.host, route.proxy.port, ends_at)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(left_s(ends_at))
        if route.tls is None:
            return connection
        if route.proxy is not None:
            _tunnel(connection, route, route.proxy)
        return route.tls.wrap_socket(connection, server_hostname=route.host)
    except BaseException:
        connection.close()
        raise


def _connect(host: str, port: int, ends_at: float) -> socket.socket:
    """Try every address of *host*; each has an equal share of the time that is left."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = OSError(f"{host} has no address")
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(left_s(ends_at) / (len(addresses) - tried))
            connection.connect(address)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise failure


def _tunnel(connection: socket.socket, route: Route, proxy: Proxy) -> None:
    host = f"[{route.host}]" if ":" in route.host else route.host
    lines = [f"CONNECT {host}:{route.port} HTTP/1.1", f"Host: {host}:{route.port}"]
    if proxy.authorization is not None:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    connection.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode())
    response = HTTPResponse(connection, method="CONNECT")
    try:
        response.begin()
    except HTTPException as error:
        raise ConnectionError(f"the proxy gave no answer to CONNECT: {error!r}") from error
    finally:
        response.close()
    if response.status != 200:
        raise ConnectionError(f"the proxy refused to connect: {response.status} {response.reason}")
