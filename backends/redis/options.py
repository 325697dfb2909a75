"""The Redis backend's options."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hicache_storage.config import Secret, check_fields, option, parse_nbytes, parse_seconds, whole_number
from hicache_storage.errors import ConfigError
from hicache_storage.secret_url import SecretUrl, parse_secret_url

_MAX_IO_THREADS = 256
_MIN_CHUNK_NBYTES = 1024
_MAX_CHUNK_NBYTES = 512 << 20
_DEFAULT_PORT = 6379
_MODES = ("standalone", "sentinel", "cluster")
_CHECKS = ("full", "ca", "none")


def parse_secret(value: object) -> Secret:
    """Return text that is not shown."""
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise ValueError("expected text")  # noqa: TRY004 - config.resolve turns ValueError into ConfigError
    return Secret(value)


def parse_chunk_nbytes(value: object) -> int:
    """Return a number of bytes that one Redis value can have."""
    nbytes = parse_nbytes(value)
    if not _MIN_CHUNK_NBYTES <= nbytes <= _MAX_CHUNK_NBYTES:
        raise ValueError("expected from 1KiB to 512MiB, the largest value that Redis takes")
    return nbytes


def parse_nodes(value: object) -> tuple[str, ...]:
    """Return ``host:port`` addresses from a list or from ``"a:6379,b:6379"``; the port may be missing."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError("expected addresses, such as 'a:6379,b:6379'")  # noqa: TRY004 - as above
    return tuple(_joined(*split_address(item)) for item in items)


def split_address(text: object) -> tuple[str, int]:
    """Return host and port of ``host:port``, ``host`` or ``[v6]:port``.

    Raises:
        ValueError: it is none of these.
    """
    if not isinstance(text, str):
        raise ValueError("expected an address, such as 'a:6379'")  # noqa: TRY004 - as above
    text = text.strip()
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(_DEFAULT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16 or (":" in host and not host.startswith("[")):
        reason = f"{text!r} is no address; expected host:port"
        raise ValueError(reason)
    return host.strip("[]"), int(port)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_key_prefix(value: object) -> str:
    """Return text that may stand before every key."""
    if not isinstance(value, str) or {"{", "}"} & set(value) or not value.isprintable():
        raise ValueError("expected printable text without braces, which would put all keys into one cluster slot")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """Options of `RedisStore`."""

    url: Secret = option(
        SecretUrl("redis://127.0.0.1:6379"),
        doc="redis://[user:password@]host[:port][/db], rediss:// for TLS, or unix:///path/to/socket; "
        "for a sentinel or cluster deployment any one of its sentinels or nodes",
        parse=parse_secret_url,
        env=("REDIS_URL", "VALKEY_URL"),
    )
    mode: Literal["standalone", "sentinel", "cluster"] = option(
        "standalone",
        doc="what url leads to: standalone = one server, sentinel = a sentinel, cluster = a cluster's node",
    )
    nodes: tuple[str, ...] = option(
        (),
        doc="further sentinels or cluster nodes to start from, host:port,host:port",
        parse=parse_nodes,
        aliases=("sentinels", "startup_nodes"),
    )
    sentinel_service: str = option(
        "mymaster", doc="name of the master that the sentinels watch", aliases=("service_name", "master_name")
    )
    sentinel_username: str | None = option(None, doc="ACL user at the sentinels, if they ask for one")
    sentinel_password: Secret | None = option(
        None, doc="password at the sentinels, if they ask for one", parse=parse_secret
    )
    username: str | None = option(None, doc="ACL user; wins over the URL's", env=("REDIS_USERNAME",))
    password: Secret | None = option(
        None, doc="password; wins over the URL's", parse=parse_secret, env=("REDIS_PASSWORD",)
    )
    db: int | None = option(
        None, doc="database number; wins over the URL's", parse=whole_number(0, 1 << 20), env=("REDIS_DB",)
    )
    tls_ca_path: Path | None = option(
        None, doc="file of CA certificates in PEM format; none = the system's", aliases=("ssl_ca_certs",)
    )
    tls_cert_path: Path | None = option(None, doc="client certificate in PEM format", aliases=("ssl_certfile",))
    tls_key_path: Path | None = option(None, doc="client key in PEM format", aliases=("ssl_keyfile",))
    tls_verify: Literal["full", "ca", "none"] = option(
        "full",
        doc="what is checked of the server's certificate: full = issuer and host name, ca = issuer, none = nothing",
    )
    key_prefix: str = option(
        "hicache:", doc="stands before every key; separates stores in one database", parse=parse_key_prefix
    )
    ttl_s: float | None = option(
        None, doc="seconds after its last write or touch at which an object vanishes; none = never", parse=parse_seconds
    )
    chunk_nbytes: int = option(
        64 << 20,
        doc="an object over this size is stored as several values of at most this size",
        parse=parse_chunk_nbytes,
    )
    pipeline_nbytes: int = option(
        4 << 20,
        doc="bytes that one connection has on the way before it waits for answers; one object may be more",
        parse=parse_nbytes,
    )
    io_threads: int = option(
        min(16, 2 * (os.cpu_count() or 1)),
        doc="most threads, each with a connection of its own, that work on one batch",
        parse=whole_number(1, _MAX_IO_THREADS),
    )
    deadline_s: float = option(
        5.0,
        doc="seconds without progress after which an operation fails; a batch gives a silent server up as a whole",
        parse=parse_seconds,
        aliases=("socket_timeout", "timeout_s"),
    )
    client_name: str = option("hicache", doc="what CLIENT LIST on the server shows")

    def __post_init__(self) -> None:
        check_fields(self, "redis")
        for name, known in (("mode", _MODES), ("tls_verify", _CHECKS)):
            if getattr(self, name) not in known:
                reason = f"redis option {name} = {getattr(self, name)!r}: expected {' or '.join(map(repr, known))}"
                raise ConfigError(reason)
        if self.mode == "cluster" and self.db:
            reason = f"redis option db = {self.db}: a cluster has only database 0"
            raise ConfigError(reason)
        if self.tls_key_path is not None and self.tls_cert_path is None:
            raise ConfigError("redis option tls_key_path is set without tls_cert_path")
