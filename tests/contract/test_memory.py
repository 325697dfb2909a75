from __future__ import annotations

from collections.abc import Iterator

import pytest

from hicache_storage.store import ObjectStore
from hicache_storage.testing.contract import SMALL_STORE_NBYTES, StoreContract
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from hicache_storage.testing.model import store_machine


class TestMemoryStore(StoreContract):
    shared_between_processes = False

    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        with MemoryStore() as store:
            yield store

    @pytest.fixture
    def small_store(self) -> Iterator[ObjectStore]:
        with MemoryStore(MemoryOptions(capacity_nbytes=SMALL_STORE_NBYTES)) as store:
            yield store

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        assert isinstance(store, MemoryStore)
        store._objects[key] = body

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        assert isinstance(store, MemoryStore)
        return store._objects.get(key)


TestMemoryModel = store_machine(MemoryStore)
