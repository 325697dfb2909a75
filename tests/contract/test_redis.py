from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest

from hicache_storage.backends.redis import RedisOptions, RedisStore
from hicache_storage.store import ObjectStore
from hicache_storage.testing.contract import StoreContract
from hicache_storage.testing.model import store_machine
from tests.backends.redis.back_door import RedisService

pytest_plugins = ["tests.backends.redis.services"]


class RedisHooks:
    """How a test gets at the values without the store. `special` is what is special about the store under test."""

    bounded = False
    fixture: ClassVar[str] = "service"
    special: ClassVar[dict[str, object]] = {}
    service: RedisService
    options: RedisOptions

    @pytest.fixture
    def store(self, request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
        self.service = request.getfixturevalue(self.fixture)
        self.options = self.service.options(**self.special)
        with RedisStore(self.options) as store:
            yield store

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        self.service.plant(self.options, key, body)

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        return self.service.observe(self.options, key)

    def second(self, store: ObjectStore) -> ObjectStore:
        return RedisStore(self.options)

    def opening_code(self, store: ObjectStore) -> str:
        given = {field.name: getattr(self.options, field.name) for field in dataclasses.fields(self.options)}
        del given["url"]
        return (
            "from hicache_storage.backends.redis import RedisOptions, RedisStore\n"
            "from hicache_storage.config import Secret\n"
            f"store = RedisStore(RedisOptions(url=Secret({self.service.url!r}), **{given!r}))\n"
        )


class TestRedisStore(RedisHooks, StoreContract):
    pass


class TestRedisStoreWithSmallChunks(RedisHooks, StoreContract):
    special: ClassVar[dict[str, object]] = {"chunk_nbytes": 1024, "pipeline_nbytes": 64 << 10, "ttl_s": 3600}


class TestRedisStoreOnACluster(RedisHooks, StoreContract):
    fixture = "cluster_service"
    special: ClassVar[dict[str, object]] = {"mode": "cluster", "chunk_nbytes": 256 << 10}


class TestRedisStoreOnValkey(RedisHooks, StoreContract):
    fixture = "valkey"


@pytest.mark.parametrize("special", [{}, {"chunk_nbytes": 1024}], ids=["plain", "chunked"])
def test_the_store_equals_the_specification(service: RedisService, special: dict[str, object]) -> None:
    @contextmanager
    def new_store() -> Iterator[ObjectStore]:
        with RedisStore(service.options(**special)) as store:
            yield store

    result = store_machine(new_store)("runTest").run()

    assert result is not None
    assert not result.failures + result.errors
