"""The store: one table, one row per object. SQLite's transactions do what a store promises."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hicache_sqlite.connections import BACKEND, Connections
from hicache_storage import (
    Capabilities,
    CorruptObject,
    ObjectInfo,
    ObjectStore,
    RangeError,
    Unsupported,
    WriteResult,
)
from hicache_storage.config import option, parse_nbytes
from hicache_storage.store import check_key
from hicache_storage.types import ReadableBuffer, WritableBuffer, nbytes_of

_MAX_OBJECT_NBYTES = 512 << 20
"""SQLite holds 10**9 bytes in a row; half of that is plenty for a chunk of a page."""

# One statement is one transaction: an object of the same size stays, one of another size is replaced.
_WRITE = """
INSERT INTO objects (key, stored_s, body) VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET stored_s = excluded.stored_s, body = excluded.body
WHERE length(objects.body) <> length(excluded.body)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SQLiteOptions:
    """Options of `SQLiteStore`."""

    path: Path = option(
        doc="the database file; it and its folder are created if they are missing, unless create is false"
    )
    capacity_nbytes: int | None = option(
        None,
        doc="most bytes of the database file, e.g. 10GiB; a full store refuses; none = no limit",
        parse=parse_nbytes,
    )
    lock_wait_s: float = option(5.0, doc="seconds that an operation waits for another writer")
    create: bool = option(default=True, doc="make the file if it is missing; false = only look, and change nothing")


class SQLiteStore(ObjectStore):
    """Objects as rows of one SQLite file, shared by threads and processes of one machine.

    Readers never wait; writers wait for each other, so writing does not get faster with more threads.

    Raises:
        ConfigError: the file cannot be a database.
        StoreUnavailable: there is no such file, and none is to be made.
    """

    name = BACKEND
    options_type: ClassVar[type] = SQLiteOptions
    capabilities = Capabilities(max_object_nbytes=_MAX_OBJECT_NBYTES)

    def __init__(self, options: SQLiteOptions) -> None:
        self._connections = Connections(
            options.path, options.capacity_nbytes, options.lock_wait_s, create=options.create
        )

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        encoded = check_key(key, self.capabilities, backend=self.name, op="write")
        nbytes = sum(map(nbytes_of, parts))
        if nbytes > _MAX_OBJECT_NBYTES:
            reason = f"object of {nbytes} bytes, this store takes at most {_MAX_OBJECT_NBYTES}"
            raise Unsupported(reason, backend=self.name, op="write", key=key)
        with self._connections.use("write", key) as database:
            changed = database.execute(_WRITE, (encoded, time.time(), b"".join(parts))).rowcount
        return WriteResult.STORED if changed else WriteResult.ALREADY_THERE

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        encoded = check_key(key, self.capabilities, backend=self.name, op="read")
        with self._connections.use("read", key) as database:
            database.execute("BEGIN")  # The size and the bytes are those of one moment.
            row = database.execute("SELECT id, length(body) FROM objects WHERE key = ?", (encoded,)).fetchone()
            if row is None:
                return False
            row_id, nbytes = row
            self._check_range(key, nbytes, offset, sum(map(nbytes_of, targets)), object_nbytes)
            with database.blobopen("objects", "body", row_id, readonly=True) as blob:
                blob.seek(offset)
                for target in targets:
                    with memoryview(target).cast("B") as into:
                        into[:] = blob.read(into.nbytes)
        return True

    def stat(self, key: str) -> ObjectInfo | None:
        encoded = check_key(key, self.capabilities, backend=self.name, op="stat")
        with self._connections.use("stat", key) as database:
            found = database.execute("SELECT length(body), stored_s FROM objects WHERE key = ?", (encoded,)).fetchone()
        return None if found is None else ObjectInfo(key, *found)

    def delete(self, key: str) -> bool:
        encoded = check_key(key, self.capabilities, backend=self.name, op="delete")
        with self._connections.use("delete", key) as database:
            return database.execute("DELETE FROM objects WHERE key = ?", (encoded,)).rowcount > 0

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        start = prefix.encode("utf-8", "surrogatepass")
        listing = "SELECT key, length(body), stored_s FROM objects WHERE key >= ? AND substr(key, 1, ?) = ?"
        with self._connections.use("list", "") as database:
            # All rows at once: a reader that stays open would keep SQLite from reusing its log.
            rows = database.execute(listing, (start, len(start), start)).fetchall()
        for key, nbytes, stored_s in rows:
            yield ObjectInfo(key.decode(), nbytes, stored_s)

    def close(self) -> None:
        self._connections.close()

    def _check_range(self, key: str, nbytes: int, offset: int, length: int, object_nbytes: int | None) -> None:
        if object_nbytes is not None and nbytes != object_nbytes:
            reason = f"the object has {nbytes} bytes instead of {object_nbytes}"
            raise CorruptObject(reason, backend=self.name, op="read", key=key)
        if offset < 0 or offset + length > nbytes:
            reason = f"bytes [{offset}, {offset + length}) of an object of {nbytes} bytes"
            raise RangeError(reason, backend=self.name, op="read", key=key)
