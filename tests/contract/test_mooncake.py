from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest

from hicache_storage.backends.mooncake import MooncakeOptions, MooncakeStore
from hicache_storage.store import ObjectStore
from hicache_storage.testing.contract import SMALL_STORE_NBYTES, StoreContract
from hicache_storage.testing.laws_batch import BatchLaws
from hicache_storage.testing.laws_concurrency import ConcurrencyLaws
from hicache_storage.testing.laws_read import ReadLaws
from hicache_storage.testing.laws_write import WriteLaws
from hicache_storage.testing.model import store_machine
from hicache_storage.testing.services.mooncake import MooncakeService
from tests.backends.mooncake.back_door import BackDoor

pytest_plugins = ["tests.backends.mooncake.services"]


@pytest.fixture(scope="session")
def back_door(mooncake_cluster: MooncakeService) -> BackDoor:
    return BackDoor(mooncake_cluster)


@pytest.fixture(scope="session")
def small_back_door(mooncake_small_cluster: MooncakeService) -> BackDoor:
    return BackDoor(mooncake_small_cluster)


class MooncakeHooks:
    """How a test gets at the objects without the store. `special` is what is special about the store under test."""

    special: ClassVar[dict[str, object]] = {}
    back_door: BackDoor
    options: MooncakeOptions

    @pytest.fixture
    def store(self, back_door: BackDoor) -> Iterator[ObjectStore]:
        self.back_door = back_door
        self.options = back_door.options(**self.special)
        with MooncakeStore(self.options) as store:
            yield store

    @pytest.fixture
    def small_store(self, small_back_door: BackDoor) -> Iterator[ObjectStore]:
        self.back_door = small_back_door
        self.options = small_back_door.options(**self.special)
        small_back_door.leave_room(SMALL_STORE_NBYTES)
        with MooncakeStore(self.options) as store:
            yield store

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        self.back_door.plant(self.options, key, body)

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        return self.back_door.observe(self.options, key)

    def second(self, store: ObjectStore) -> ObjectStore:
        return MooncakeStore(self.options)

    def opening_code(self, store: ObjectStore) -> str:
        given = {field.name: getattr(self.options, field.name) for field in dataclasses.fields(self.options)}
        return (
            "from hicache_storage.backends.mooncake import MooncakeOptions, MooncakeStore\n"
            f"store = MooncakeStore(MooncakeOptions(**{given!r}))\n"
        )


def test_the_store_equals_the_specification(back_door: BackDoor) -> None:
    @contextmanager
    def new_store() -> Iterator[ObjectStore]:
        with MooncakeStore(back_door.options()) as store:
            yield store

    result = store_machine(new_store)("runTest").run()

    assert result is not None
    assert not result.failures + result.errors


class TestMooncakeStore(MooncakeHooks, StoreContract):
    pass


class TestMooncakeStoreWithSmallBuffers(MooncakeHooks, ReadLaws, WriteLaws, BatchLaws, ConcurrencyLaws):
    """Only the laws of moving bytes: the buffers make no difference to the others."""

    special: ClassVar[dict[str, object]] = {"local_buffer_nbytes": 1 << 20, "io_threads": 8, "direct_reads": False}
