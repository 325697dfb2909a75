from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import pytest

from hicache_storage.backends.file import FileOptions, FileStore
from hicache_storage.backends.tiered import TieredOptions, TieredStore
from hicache_storage.backends.tiered.copies import Copies
from hicache_storage.registry import open_store
from hicache_storage.store import ObjectStore
from hicache_storage.testing.contract import SMALL_STORE_NBYTES, StoreContract
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from hicache_storage.testing.model import store_machine
from hicache_storage.types import ObjectWrite, Outcome, WriteResult

TIERED = "hicache_storage.backends.tiered:TieredStore"


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


class TestTieredMemoryServedFromBelow(MemoryHooks, StoreContract):
    """While only the second store has anything, and while objects are promoted."""

    shared_between_processes = False
    waived: ClassVar[dict[str, str]] = {
        "test_an_object_that_is_there_stays_as_it_is": "a write says what the first store found, it does not ask below",
        "test_an_empty_object_that_is_there_stays": "a write says what the first store found, it does not ask below",
        "test_writes_are_answered_in_request_order": "a write says what the first store found, it does not ask below",
    }

    def options(self) -> TieredOptions:
        return TieredOptions(stores=self.tiers, promote="first")

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        self.tiers[1]._objects[key] = body
        # The law says that this is the object now; one that lies above would hide it.
        self.tiers[0]._objects.pop(key, None)


class TestTieredFiles(StoreContract):
    """Two folders. The back door is a store of its own on each of them."""

    root: Path
    doors: list[FileStore]

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        with self.opened(tmp_path, None) as store:
            yield store

    @pytest.fixture
    def small_store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        with self.opened(tmp_path / "small", SMALL_STORE_NBYTES) as store:
            yield store

    @contextmanager
    def opened(self, root: Path, capacity_nbytes: int | None) -> Iterator[ObjectStore]:
        self.root = root
        folders = [FileOptions(path=root / name, capacity_nbytes=capacity_nbytes) for name in ("upper", "lower")]
        with FileStore(folders[0]) as upper, FileStore(folders[1]) as lower:
            self.doors = [upper, lower]
            with TieredStore(TieredOptions(stores=[FileStore(folder) for folder in folders])) as store:
                yield store

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        for door in self.doors:
            if door.write(key, [body]) is WriteResult.ALREADY_THERE:
                door.delete(key)
                door.write(key, [body])

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        for door in self.doors:
            info = door.stat(key)
            if info is not None:
                body = bytearray(info.nbytes)
                return bytes(body) if door.read_into(key, 0, [body], object_nbytes=info.nbytes) else None
        return None

    def second(self, store: ObjectStore) -> ObjectStore:
        return open_store(TIERED, {"stores": [f"file://{self.root}/upper", f"file://{self.root}/lower"]})

    def reopen(self, store: ObjectStore) -> ObjectStore:
        return self.second(store)

    def opening_code(self, store: ObjectStore) -> str:
        return (
            "from hicache_storage import open_store\n"
            f"store = open_store({TIERED!r}, {{'stores': ['file://{self.root}/upper', 'file://{self.root}/lower']}})\n"
        )


class OneCopyStore(TieredStore):
    """Forgets which copies were read: the model knows one copy of an object, so damage concerns all of them."""

    def quarantine(self, key: str) -> bool:
        self._copies = Copies()
        return super().quarantine(key)


@contextmanager
def new_store() -> Iterator[ObjectStore]:
    with OneCopyStore(TieredOptions(stores=[MemoryStore(), MemoryStore()], promote="all_above")) as store:
        yield store


class SettlingStore(OneCopyStore):
    """Until an object of another size is replaced below too, the old one may still be found there."""

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        outcomes = super().write_many(writes)
        assert self.settle(60)
        return outcomes


@contextmanager
def new_store_with_writes_in_the_background() -> Iterator[ObjectStore]:
    options = TieredOptions(stores=[MemoryStore(), MemoryStore()], write="first_then_background")
    with SettlingStore(options) as store:
        yield store


@contextmanager
def new_store_of_files() -> Iterator[ObjectStore]:
    with TemporaryDirectory() as folder:
        stores = [FileStore(FileOptions(path=Path(folder, name), io_threads=1)) for name in ("upper", "lower")]
        with OneCopyStore(TieredOptions(stores=stores)) as store:
            yield store


TestTieredModel = store_machine(new_store)
TestTieredBackgroundModel = store_machine(new_store_with_writes_in_the_background)
TestTieredFileModel = store_machine(new_store_of_files)
