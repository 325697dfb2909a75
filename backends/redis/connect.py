"""From options to connected sockets. Addresses, TLS, ACL users and databases are redis-py's business."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from hicache_storage.backends.redis.errors import connecting
from hicache_storage.backends.redis.options import RedisOptions, split_address
from hicache_storage.backends.redis.wire import Patience, TLSWire, Wire
from hicache_storage.backends.sockets import connect
from hicache_storage.config import Secret
from hicache_storage.errors import ConfigError

_DEFAULT_PORT = 6379
_SCHEMES = {"redis": "redis", "rediss": "rediss", "unix": "unix", "valkey": "redis", "valkeys": "rediss"}
_CERT_REQS = {"full": "required", "ca": "required", "none": "none"}


class Address(NamedTuple):
    """Where a server listens: a host and a port, or the path of a unix socket and port 0."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


@dataclass(frozen=True, slots=True)
class Login:
    """Who the client is to a server."""

    username: str | None
    password: Secret | None
    db: int


@dataclass(frozen=True, slots=True)
class Target:
    """What the options say about where to connect and as whom."""

    start: tuple[Address, ...]
    tls: bool
    login: Login

    @classmethod
    def of(cls, options: RedisOptions) -> Target:
        """Return the target of *options*.

        Raises:
            ConfigError: the URL cannot be read; it is not shown, for it may carry a password.
        """
        parts = _parsed(options.url.reveal())
        if "path" in parts:
            first = Address(str(parts["path"]), 0)
        else:
            first = Address(str(parts.get("host", "127.0.0.1")), int(str(parts.get("port", _DEFAULT_PORT))))
        if not first.port and options.mode != "standalone":
            reason = f"redis option url is a unix socket, which leads to one server; mode = {options.mode!r}"
            raise ConfigError(reason)
        password = Secret(str(parts["password"])) if "password" in parts else None
        username = str(parts["username"]) if "username" in parts else None
        db = options.db if options.db is not None else int(str(parts.get("db", 0)))
        if db and options.mode == "cluster":
            reason = f"redis option db = {db}: a cluster has only database 0"
            raise ConfigError(reason)
        return cls(
            start=(first, *(Address(*split_address(node)) for node in options.nodes)),
            tls=parts.get("connection_class") is redis.SSLConnection,
            login=Login(options.username or username, options.password or password, db),
        )


def _parsed(url: str) -> dict[str, object]:
    scheme, separator, rest = url.partition("://")
    known = {"host", "port", "path", "db", "username", "password", "connection_class"}
    try:
        parts: dict[str, object] = parse_url(f"{_SCHEMES[scheme]}{separator}{rest}")  # type: ignore[no-untyped-call]
        path = urlsplit(url).path.strip("/")
    except (KeyError, ValueError):
        raise ConfigError(f"redis option url cannot be read; expected one of {', '.join(_SCHEMES)}://...") from None
    if "@" in urlsplit(url).query or ("path" not in parts and "@" in path):
        raise ConfigError("redis option url cannot be read; what is special in a user or a password is written %XX")
    if parts.keys() - known:
        reason = (
            f"redis option url has {', '.join(sorted(parts.keys() - known))} behind its ?; give options of their own"
        )
        raise ConfigError(reason)
    if "path" not in parts and path and not path.isdecimal():
        reason = f"redis option url has the path {path!r}; expected a database number"
        raise ConfigError(reason)
    return parts


class _Connection(Protocol):
    """What is used of a redis-py connection."""

    patience: Patience

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def take_socket(self) -> socket.socket: ...


class _Handshake:
    """What the three kinds of redis-py connections get in addition: one deadline, and a socket that can be taken."""

    patience: Patience
    _sock: socket.socket | None

    def send_packed_command(self, command: object, check_health: bool = True) -> None:
        if self._sock is not None:
            self._sock.settimeout(self.patience.left_s())
        super().send_packed_command(command, check_health)  # type: ignore[misc]  # a mixin's super

    def take_socket(self) -> socket.socket:
        """Return the connected socket; it is the caller's from now on."""
        sock, self._sock = self._sock, None
        if sock is None:
            raise OSError("no connection was made")
        return sock


class _Dial(redis.Connection):
    """Comes to a TCP connection within the deadline, however many addresses its host has."""

    patience: Patience

    def _connect(self) -> socket.socket:
        connection = connect(self.host, self.port, self.patience.left_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection


class _TCP(_Handshake, _Dial):  # type: ignore[misc]  # theirs says that _sock is always None
    pass


class _TLS(_Handshake, redis.SSLConnection, _Dial):  # type: ignore[misc]  # as above
    pass


class _Unix(_Handshake, redis.UnixDomainSocketConnection):  # type: ignore[misc]  # as above
    pass


_TCP_CONNECTION: Callable[..., _Connection] = _TCP
_TLS_CONNECTION: Callable[..., _Connection] = _TLS
_UNIX_CONNECTION: Callable[..., _Connection] = _Unix


class Connector:
    """Makes connections to any server of one deployment. Holds none."""

    def __init__(self, options: RedisOptions, login: Login, *, tls: bool) -> None:
        self._tls = tls
        self._shared: dict[str, object] = {
            "username": login.username,
            "password": login.password.reveal() if login.password is not None else None,
            "db": login.db,
            "client_name": options.client_name or None,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
        }
        self._ssl: dict[str, object] = {
            "ssl_ca_certs": str(options.tls_ca_path) if options.tls_ca_path else None,
            "ssl_certfile": str(options.tls_cert_path) if options.tls_cert_path else None,
            "ssl_keyfile": str(options.tls_key_path) if options.tls_key_path else None,
            "ssl_cert_reqs": _CERT_REQS[options.tls_verify],
            "ssl_check_hostname": options.tls_verify == "full",
        }

    def connect(self, address: Address, patience: Patience) -> Wire:
        """Return a connection that is logged in; the caller closes it.

        Raises:
            StoreUnavailable, AccessDenied: it could not be made.
            ConnectionLost: not in time.
        """
        with connecting(str(address)):
            connection = self._connection(address, patience)
            try:
                connection.connect()
                sock = connection.take_socket()
            finally:
                connection.disconnect()
        return TLSWire(sock, patience) if isinstance(sock, ssl.SSLSocket) else Wire(sock, patience)

    def _connection(self, address: Address, patience: Patience) -> _Connection:
        left_s = patience.left_s()
        shared = {**self._shared, "socket_timeout": left_s, "socket_connect_timeout": left_s}
        if not address.port:
            connection = _UNIX_CONNECTION(path=address.host, **shared)
        elif self._tls:
            connection = _TLS_CONNECTION(host=address.host, port=address.port, **self._ssl, **shared)
        else:
            connection = _TCP_CONNECTION(host=address.host, port=address.port, **shared)
        connection.patience = patience
        return connection
