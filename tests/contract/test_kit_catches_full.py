"""Planted faults of stores that are full, and for each the law that catches it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hicache_storage.errors import StoreFull
from hicache_storage.testing.contract import SMALL_STORE_NBYTES
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import ReadableBuffer, WriteResult, nbytes_of
from tests.contract.planting import assert_all_caught, planted_classes
from tests.contract.test_kit_catches import Hooks

pytest_plugins = ["pytester"]


class MakesRoomByTruncating(MemoryStore):
    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        try:
            return super().write(key, parts)
        except StoreFull:
            if sum(map(nbytes_of, parts)) > SMALL_STORE_NBYTES // 2:
                raise
            for other in self._objects:
                self._objects[other] = self._objects[other][:10]
            return super().write(key, parts)


class StoresAPartWhenFull(MemoryStore):
    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        try:
            return super().write(key, parts)
        except StoreFull:
            self._objects[key] = b"".join(parts)[:10]
            raise


class StaysFull(MemoryStore):
    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        if getattr(self, "full", False):
            raise StoreFull("it was full once")
        try:
            return super().write(key, parts)
        except StoreFull:
            self.full = True
            raise


PLANTED = [
    (MakesRoomByTruncating, "test_a_full_store_refuses_or_evicts_and_damages_nothing"),
    (StoresAPartWhenFull, "test_a_full_store_refuses_or_evicts_and_damages_nothing"),
    (StaysFull, "test_a_full_store_takes_an_object_once_there_is_room"),
]
PLANTED_CLASSES = planted_classes(Hooks, PLANTED)


def test_every_planted_fault_is_caught_by_its_law(pytester: pytest.Pytester) -> None:
    assert_all_caught(pytester, __name__)
