from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hicache_storage.backends.file import FileOptions, FileStore
from hicache_storage.backends.file.names import object_path
from hicache_storage.backends.tiered import TieredOptions, TieredStore
from hicache_storage.store import ObjectStore
from hicache_storage.testing.contract import SMALL_STORE_NBYTES, StoreContract
from hicache_storage.testing.laws_batch import BatchLaws
from hicache_storage.testing.laws_concurrency import ConcurrencyLaws
from hicache_storage.testing.laws_keys import KeyLaws
from hicache_storage.testing.laws_read import ReadLaws
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from hicache_storage.testing.model import store_machine


class MemoryHooks:
    """Two stores in memory. What is planted lies in both, what is observed in any."""

    tiers: list[MemoryStore]

    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        self.tiers = [MemoryStore(), MemoryStore()]
        with TieredStore(self.options()) as store:
            yield store

    def options(self) -> TieredOptions:
        return TieredOptions(stores=self.tiers, promote="all_above")

    @pytest.fixture
    def small_store(self) -> Iterator[ObjectStore]:
        self.tiers = [MemoryStore(MemoryOptions(capacity_nbytes=SMALL_STORE_NBYTES)) for _ in range(2)]
        with TieredStore(self.options()) as store:
            yield store

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        for tier in self.tiers:
            tier._objects[key] = body

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        return next((body for tier in self.tiers if (body := tier._objects.get(key)) is not None), None)


class TestTieredMemory(MemoryHooks, StoreContract):
    shared_between_processes = False


class TestTieredMemoryWithWritesInTheBackground(MemoryHooks, StoreContract):
    shared_between_processes = False
    bounded = False  # What does not fit into the first store goes to the second: together they hold more.

    def options(self) -> TieredOptions:
        return TieredOptions(stores=self.tiers, write="first_then_background")


class TestTieredMemoryServedFromBelow(MemoryHooks, ReadLaws, BatchLaws, KeyLaws, ConcurrencyLaws):
    """The laws of reading while only the second store has anything, and while objects are promoted."""

    def options(self) -> TieredOptions:
        return TieredOptions(stores=self.tiers, promote="first")

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        self.tiers[1]._objects[key] = body
        # The law says that this is the object now; one that lies above would hide it.
        self.tiers[0]._objects.pop(key, None)


class TestTieredFiles(StoreContract):
    root: Path

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        self.root = tmp_path
        with self.second(TieredStore) as store:
            yield store

    @pytest.fixture
    def small_store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        self.root = tmp_path
        options = [FileOptions(path=tmp_path / name, capacity_nbytes=SMALL_STORE_NBYTES) for name in ("upper", "lower")]
        with TieredStore(TieredOptions(stores=[FileStore(o) for o in options])) as store:
            yield store

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        for tier in ("upper", "lower"):
            path = self.root / tier / "objects" / object_path(key.encode())
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.parent / "planted"
            beside.write_bytes(body)
            beside.replace(path)
            if path.name.startswith("="):
                path.with_name(f"{path.name}.key").write_bytes(key.encode())

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        paths = [self.root / tier / "objects" / object_path(key.encode()) for tier in ("upper", "lower")]
        return next((path.read_bytes() for path in paths if path.exists()), None)

    def second(self, store: object) -> ObjectStore:
        return TieredStore(TieredOptions(stores=[f"file://{self.root}/upper", f"file://{self.root}/lower"]))

    def reopen(self, store: ObjectStore) -> ObjectStore:
        return self.second(store)

    def opening_code(self, store: ObjectStore) -> str:
        return (
            "from hicache_storage.backends.tiered import TieredOptions, TieredStore\n"
            f"store = TieredStore(TieredOptions(stores=['file://{self.root}/upper', 'file://{self.root}/lower']))\n"
        )


@contextmanager
def new_store() -> Iterator[ObjectStore]:
    with TieredStore(TieredOptions(stores=[MemoryStore(), MemoryStore()], promote="all_above")) as store:
        yield store


@contextmanager
def new_store_with_writes_in_the_background() -> Iterator[ObjectStore]:
    options = TieredOptions(stores=[MemoryStore(), MemoryStore()], write="first_then_background")
    with TieredStore(options) as store:
        yield store


@contextmanager
def new_store_of_files() -> Iterator[ObjectStore]:
    with TemporaryDirectory() as folder:
        stores = [FileStore(FileOptions(path=Path(folder, name), io_threads=1)) for name in ("upper", "lower")]
        with TieredStore(TieredOptions(stores=stores)) as store:
            yield store


TestTieredModel = store_machine(new_store)
TestTieredBackgroundModel = store_machine(new_store_with_writes_in_the_background)
TestTieredFileModel = store_machine(new_store_of_files)
