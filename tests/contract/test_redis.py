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


_OTHER_PROCESS = "other-process"


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
        self.service.clear()

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        self.service.plant(self.options, key, body)

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        self.service.wait_for_end_of(_OTHER_PROCESS)
        return self.service.observe(self.options, key)

    def second(self, store: ObjectStore) -> ObjectStore:
        return RedisStore(self.options)

    def opening_code(self, store: ObjectStore) -> str:
        given = {field.name: getattr(self.options, field.name) for field in dataclasses.fields(self.options)}
        del given["url"]
        given["client_name"] = _OTHER_PROCESS
        return (
            "from hicache_storage.backends.redis import RedisOptions, RedisStore\n"
            "from hicache_storage.config import Secret\n"
            f"store = RedisStore(RedisOptions(url=Secret({self.service.url!r}), **{given!r}))\n"
        )


class TestRedisStore(RedisHooks, StoreContract):
    pass


class TestRedisStoreOnACluster(RedisHooks, StoreContract):
    """Most of its objects are chunked too."""

    fixture = "cluster_service"
    special: ClassVar[dict[str, object]] = {
        "mode": "cluster", "chunk_nbytes": 64 << 10, "pipeline_nbytes": 256 << 10, "ttl_s": 3600
    }  # fmt: skip


@pytest.mark.parametrize("fixture", ["service", "valkey"])
def test_the_store_equals_the_specification(request: pytest.FixtureRequest, fixture: str) -> None:
    service: RedisService = request.getfixturevalue(fixture)

    @contextmanager
    def new_store() -> Iterator[ObjectStore]:
        with RedisStore(service.options(chunk_nbytes=4096)) as store:
            yield store
        service.clear()

    result = store_machine(new_store)("runTest").run()

    assert result is not None
    assert not result.failures + result.errors
