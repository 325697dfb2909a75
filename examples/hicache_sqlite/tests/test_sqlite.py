# ruff: noqa: ARG002 - hooks are given the store; these need only its path
"""The whole proof: every law of the contract, and random operations against the specification."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hicache_sqlite import SQLiteOptions, SQLiteStore

from hicache_storage import ObjectStore
from hicache_storage.testing.contract import SMALL_STORE_NBYTES, StoreContract
from hicache_storage.testing.model import store_machine


class TestSQLiteStore(StoreContract):
    """The hooks plant and observe rows with a connection of their own."""

    path: Path

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        self.path = tmp_path / "cache.db"
        with SQLiteStore(SQLiteOptions(path=self.path)) as store:
            yield store

    @pytest.fixture
    def small_store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        self.path = tmp_path / "small.db"
        with SQLiteStore(SQLiteOptions(path=self.path, capacity_nbytes=SMALL_STORE_NBYTES)) as store:
            yield store

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute("REPLACE INTO objects (key, stored_s, body) VALUES (?, 0, ?)", (key.encode(), body))

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        with closing(sqlite3.connect(self.path)) as database:
            row = database.execute("SELECT body FROM objects WHERE key = ?", (key.encode(),)).fetchone()
        return row and bytes(row[0])

    def second(self, store: ObjectStore) -> ObjectStore:
        return SQLiteStore(SQLiteOptions(path=self.path))

    def reopen(self, store: ObjectStore) -> ObjectStore:
        return self.second(store)

    def opening_code(self, store: ObjectStore) -> str:
        return f"from hicache_storage import open_store\nstore = open_store('sqlite://{self.path}')\n"


@contextmanager
def new_store() -> Iterator[ObjectStore]:
    """Give an empty store for one example of the state machine."""
    with TemporaryDirectory() as folder, SQLiteStore(SQLiteOptions(path=Path(folder, "cache.db"))) as store:
        yield store


TestSQLiteModel = store_machine(new_store)
