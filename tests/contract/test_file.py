from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hicache_storage.backends.file import FileOptions, FileStore
from hicache_storage.backends.file.names import object_path
from hicache_storage.store import ObjectStore
from hicache_storage.testing.contract import SMALL_STORE_NBYTES, StoreContract
from hicache_storage.testing.laws_read import ReadLaws
from hicache_storage.testing.laws_write import WriteLaws
from hicache_storage.testing.model import store_machine


class FileHooks:
    """How a test gets at the files without the store. `options` says what is special about the store under test."""

    options = "io_threads=4"
    root: Path

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        self.root = tmp_path / "store"
        with self.opened() as store:
            yield store

    @pytest.fixture
    def small_store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        self.root = tmp_path / "small"
        with FileStore(FileOptions(path=self.root, capacity_nbytes=SMALL_STORE_NBYTES)) as store:
            yield store

    def opened(self) -> ObjectStore:
        names = {"FileStore": FileStore, "FileOptions": FileOptions, "Path": Path}
        store = eval(f"FileStore(FileOptions(path=Path({str(self.root)!r}), {self.options}))", names)
        assert isinstance(store, FileStore)
        return store

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        path = self.root / "objects" / object_path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.parent / "planted"
        beside.write_bytes(body)
        beside.replace(path)
        if path.name.startswith("="):
            path.with_name(f"{path.name}.key").write_bytes(key.encode())

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        path = self.root / "objects" / object_path(key)
        return path.read_bytes() if path.exists() else None

    def second(self, store: ObjectStore) -> ObjectStore:
        return self.opened()

    def reopen(self, store: ObjectStore) -> ObjectStore:
        return self.opened()

    def opening_code(self, store: ObjectStore) -> str:
        return (
            "from pathlib import Path\n"
            "from hicache_storage.backends.file import FileOptions, FileStore\n"
            f"store = FileStore(FileOptions(path=Path({str(self.root)!r}), {self.options}))\n"
        )


class TestFileStore(FileHooks, StoreContract):
    pass


class TestFileStoreWithACapacity(FileHooks, StoreContract):
    options = "capacity_nbytes=1 << 30"


class TestFileStoreWithDirectIO(FileHooks, ReadLaws, WriteLaws):
    """Only the laws that reach the transfers; the rest of the code is the same."""

    options = "direct=True"


@contextmanager
def new_store() -> Iterator[ObjectStore]:
    with TemporaryDirectory() as folder, FileStore(FileOptions(path=Path(folder), io_threads=2)) as store:
        yield store


@contextmanager
def new_counted_store() -> Iterator[ObjectStore]:
    with TemporaryDirectory() as folder:
        options = FileOptions(path=Path(folder), io_threads=2, capacity_nbytes=1 << 30)
        with FileStore(options) as store:
            yield store


TestFileModel = store_machine(new_store)
TestCountedFileModel = store_machine(new_counted_store)
