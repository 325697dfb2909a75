"""The executable specification of `ObjectStore`: what every other store must be equal to."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hicache_storage.config import option, parse_nbytes
from hicache_storage.errors import CorruptObject, RangeError, StoreFull, StoreUnavailable
from hicache_storage.store import ObjectStore, check_key
from hicache_storage.types import (
    Capabilities,
    ObjectInfo,
    ReadableBuffer,
    WritableBuffer,
    WriteResult,
    nbytes_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """Options of `MemoryStore`."""

    capacity_nbytes: int | None = option(
        None, doc="most bytes of objects to hold, e.g. 1GiB; unset = no limit", parse=parse_nbytes
    )


class MemoryStore(ObjectStore):
    """Objects in a dictionary of one process: they end with the instance, and no other process sees them.

    It is written to be read. A store that is full refuses; nothing is evicted. One lock guards the
    dictionary; bytes are copied outside it, which is safe because a stored object never changes.
    """

    name = "memory"
    options_type = MemoryOptions
    capabilities = Capabilities(durable=False, shared=False)

    def __init__(self, options: MemoryOptions | None = None) -> None:
        self._capacity_nbytes = (options or MemoryOptions()).capacity_nbytes
        self._lock = threading.Lock()
        self._closed = False
        self._objects: dict[str, bytes] = {}
        self._stored_at_s: dict[str, float] = {}

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        self._check("write", key)
        body = b"".join(parts)
        with self._lock:
            self._check_open("write", key)
            there = self._objects.get(key)
            if there is not None and len(there) == len(body):
                return WriteResult.ALREADY_THERE
            self._check_room(key, len(body) - len(there or b""))
            self._objects[key] = body
            self._stored_at_s[key] = time.time()
        return WriteResult.STORED

    def read_into(
        self,
        key: str,
        offset: int,
        targets: Sequence[WritableBuffer],
        *,
        object_nbytes: int | None = None,
    ) -> bool:
        self._check("read", key)
        with self._lock:
            self._check_open("read", key)
            body = self._objects.get(key)
        if body is None:
            return False
        fill_range(body, offset, targets, object_nbytes, backend=self.name, key=key)
        return True

    def stat(self, key: str) -> ObjectInfo | None:
        self._check("stat", key)
        with self._lock:
            self._check_open("stat", key)
            return self._info(key) if key in self._objects else None

    def delete(self, key: str) -> bool:
        self._check("delete", key)
        with self._lock:
            self._check_open("delete", key)
            self._stored_at_s.pop(key, None)
            return self._objects.pop(key, None) is not None

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        with self._lock:
            self._check_open("list", "")
            return iter([self._info(key) for key in self._objects if key.startswith(prefix)])

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._objects.clear()
            self._stored_at_s.clear()

    def _info(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self._objects[key]), self._stored_at_s.get(key))

    def _check(self, op: str, key: str) -> None:
        check_key(key, self.capabilities, backend=self.name, op=op)

    def _check_open(self, op: str, key: str) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed", backend=self.name, op=op, key=key)

    def _check_room(self, key: str, added_nbytes: int) -> None:
        if self._capacity_nbytes is None:
            return
        nbytes = sum(map(len, self._objects.values())) + added_nbytes
        if nbytes > self._capacity_nbytes:
            reason = f"{nbytes} bytes would be stored, capacity is {self._capacity_nbytes}"
            raise StoreFull(reason, backend=self.name, op="write", key=key)


def fill_range(
    body: bytes | bytearray,
    offset: int,
    targets: Sequence[WritableBuffer],
    object_nbytes: int | None,
    *,
    backend: str,
    key: str,
) -> None:
    """Fill *targets*, one after the other, with the bytes of *body* from *offset* on.

    Raises:
        CorruptObject: *body* has another size than *object_nbytes*. This comes first: a
            range that an object of the right size would hold is not the caller's mistake.
        RangeError: *offset* is negative, or *body* ends before the range does.
    """
    if object_nbytes is not None and len(body) != object_nbytes:
        reason = f"object has {len(body)} bytes, must have {object_nbytes}"
        raise CorruptObject(reason, backend=backend, op="read", key=key)
    stop = offset + sum(map(nbytes_of, targets))
    if offset < 0 or stop > len(body):
        reason = f"range [{offset}, {stop}) of an object of {len(body)} bytes"
        raise RangeError(reason, backend=backend, op="read", key=key)
    source = memoryview(body)
    for target in targets:
        nbytes = nbytes_of(target)
        with memoryview(target).cast("B") as into:
            into[:] = source[offset : offset + nbytes]
        offset += nbytes
