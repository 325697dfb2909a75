"""Connections to one database file, and what SQLite's errors mean."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hicache_storage import AccessDenied, ConfigError, CorruptObject, StoreError, StoreFull, StoreUnavailable
from hicache_storage.deadline import remaining_s

BACKEND = "sqlite"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,
    stored_s REAL NOT NULL,
    body BLOB NOT NULL
)
"""

_MEANING: dict[int, type[StoreError]] = {
    sqlite3.SQLITE_FULL: StoreFull,
    sqlite3.SQLITE_PERM: AccessDenied,
    sqlite3.SQLITE_READONLY: AccessDenied,
    sqlite3.SQLITE_AUTH: AccessDenied,
    sqlite3.SQLITE_CORRUPT: CorruptObject,
    sqlite3.SQLITE_NOTADB: CorruptObject,
}
"""Primary result code -> what it means here; every other one is an answer that could not be had."""


class Connections:
    """A pool of connections to the database at *path*: a connection serves one operation at a time.

    Args:
        lock_wait_s: how long an operation waits for another writer, if no deadline ends earlier.
        create: make the file if it is missing; else nothing is made, and nothing in it can be changed.

    Raises:
        ConfigError: there is no database at *path* and none can be made.
        StoreUnavailable: there is no file at *path*, and none is to be made.
    """

    def __init__(self, path: Path, capacity_nbytes: int | None, lock_wait_s: float, *, create: bool) -> None:
        if not create and not path.exists():
            raise StoreUnavailable(f"sqlite option path = '{path}': there is no such file", backend=BACKEND, op="open")
        self._path = path
        self._capacity_nbytes = capacity_nbytes
        self._lock_wait_s = lock_wait_s
        self._create = create
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._closed = False
        try:
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
            with self.use("open", "") as database:
                if create:
                    database.execute("PRAGMA journal_mode = WAL")
                    database.execute(_SCHEMA)
                database.execute("SELECT 1 FROM objects LIMIT 0")
        except (OSError, StoreError) as error:
            self.close()
            raise ConfigError(f"sqlite option path = '{path}': {error}; expected a database file") from error

    @contextmanager
    def use(self, op: str, key: str) -> Iterator[sqlite3.Connection]:
        """Lend a connection; leaving the block ends its transaction. SQLite's errors leave it as ours.

        Raises:
            StoreUnavailable: the pool is closed, or belongs to the process that forked this one.
        """
        try:
            database = self._take(op, key)
            try:
                database.execute(f"PRAGMA busy_timeout = {int(1000 * remaining_s(self._lock_wait_s))}")
                yield database
            finally:
                self._give_back(database)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            meaning = _MEANING.get(code & 0xFF, StoreUnavailable)
            raise meaning(str(error), backend=BACKEND, op=op, key=key) from error

    def close(self) -> None:
        """Close what is idle now; what is in use is closed when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for database in idle:
            database.close()

    def _take(self, op: str, key: str) -> sqlite3.Connection:
        if self._pid != os.getpid():
            reason = "SQLite files are not used across a fork: open the store again in the child"
            raise StoreUnavailable(reason, backend=BACKEND, op=op, key=key)
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed", backend=BACKEND, op=op, key=key)
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        address = f"{self._path.absolute().as_uri()}?mode={'rwc' if self._create else 'rw'}"
        database = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
        try:
            # Not mode=ro: a reader that may not write leaves the files of the write-ahead log behind.
            database.execute(f"PRAGMA query_only = {not self._create}")
            # A power failure may take the last objects, and damages nothing: enough for a cache.
            database.execute("PRAGMA synchronous = NORMAL")
            if self._capacity_nbytes is not None:
                (page_nbytes,) = database.execute("PRAGMA page_size").fetchone()
                database.execute(f"PRAGMA max_page_count = {max(1, self._capacity_nbytes // page_nbytes)}")
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _give_back(self, database: sqlite3.Connection) -> None:
        if database.in_transaction:
            database.rollback()
        with self._lock:
            if not self._closed:
                self._idle.append(database)
                return
        database.close()
