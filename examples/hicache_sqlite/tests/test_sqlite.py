# ruff: noqa: ARG002, D103 - hooks are given the store and need only its path; laws are named for what they say
"""The whole proof: every law of the contract, and random operations against the specification."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hicache_sqlite import SQLiteOptions, SQLiteStore

from hicache_storage import AccessDenied, ConfigError, ObjectStore, StoreUnavailable
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


def test_only_looking_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="mistyped"):
        SQLiteStore(SQLiteOptions(path=tmp_path / "mistyped" / "cache.db", create=False))

    assert list(tmp_path.iterdir()) == []


def test_only_looking_changes_no_store(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    with SQLiteStore(SQLiteOptions(path=path)) as store:
        store.write("a", [b"body"])
    before = path.read_bytes()

    with SQLiteStore(SQLiteOptions(path=path, create=False)) as store:
        assert [info.key for info in store.list_keys()] == ["a"]
        with pytest.raises(AccessDenied):
            store.write("b", [b"body"])
        with pytest.raises(AccessDenied):
            store.delete("a")

    assert (list(tmp_path.iterdir()), path.read_bytes()) == ([path], before)


def test_only_looking_takes_no_other_file_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()

    with pytest.raises(ConfigError, match=r"empty\.db"):
        SQLiteStore(SQLiteOptions(path=tmp_path / "empty.db", create=False))

    assert (tmp_path / "empty.db").read_bytes() == b""


@contextmanager
def new_store() -> Iterator[ObjectStore]:
    """Give an empty store for one example of the state machine."""
    with TemporaryDirectory() as folder, SQLiteStore(SQLiteOptions(path=Path(folder, "cache.db"))) as store:
        yield store


TestSQLiteModel = store_machine(new_store)
