"""The laws of instances and processes: a store in one short class obeys them, and its faulty variants are caught."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hicache_storage.store import ObjectStore
from hicache_storage.testing.contract import StoreContract, StoreHooks
from hicache_storage.testing.model import store_machine
from tests.contract.folder_store import (
    FolderStore,
    ForgetsOnClose,
    ListsUnfinishedFiles,
    PublishesUnfinishedFiles,
    RemembersWhatItSaw,
)
from tests.contract.planting import assert_all_caught, planted_classes

pytest_plugins = ["pytester"]


class FolderHooks(StoreHooks):
    store_type = FolderStore
    bounded = False

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        self.folder = tmp_path
        with self.store_type(tmp_path) as store:
            yield store

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        self._path(key).write_bytes(body)

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        path = self._path(key)
        return path.read_bytes() if path.exists() else None

    def second(self, store: ObjectStore) -> ObjectStore:
        return self.store_type(self.folder)

    def reopen(self, store: ObjectStore) -> ObjectStore:
        return self.store_type(self.folder)

    def opening_code(self, store: ObjectStore) -> str:
        return (
            f"import pathlib, sys; sys.path.append({str(Path(__file__).parent)!r})\n"
            f"from folder_store import {self.store_type.__name__} as Store\n"
            f"store = Store(pathlib.Path({str(self.folder)!r}))\n"
        )

    def _path(self, key: str) -> Path:
        return FolderStore(self.folder)._path("test", key)


class TestFolderStore(FolderHooks, StoreContract):
    pass


@contextmanager
def _new_folder_store() -> Iterator[ObjectStore]:
    with tempfile.TemporaryDirectory() as folder, FolderStore(Path(folder)) as store:
        yield store


TestFolderModel = store_machine(_new_folder_store)

PLANTED_CLASSES = planted_classes(
    FolderHooks,
    [
        (PublishesUnfinishedFiles, "test_a_killed_writer_leaves_a_whole_object_or_none"),
        (PublishesUnfinishedFiles, "test_a_reader_sees_all_of_an_object_or_nothing"),
        (ListsUnfinishedFiles, "test_a_killed_writer_leaves_a_whole_object_or_none"),
        (ListsUnfinishedFiles, "test_many_writers_of_one_key_leave_one_whole_object"),
        (ForgetsOnClose, "test_objects_of_a_durable_store_survive_reopening"),
        (RemembersWhatItSaw, "test_two_instances_see_each_other"),
    ],
)


def test_faults_between_instances_and_processes_are_caught(pytester: pytest.Pytester) -> None:
    assert_all_caught(pytester, __name__)
