"""What every layer has in common: it is a store, it wraps a store, and it sees each operation in one of two shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from hicache_storage.batches import LazySequence
from hicache_storage.store import ObjectStore
from hicache_storage.types import (
    ObjectInfo,
    ObjectWrite,
    Outcome,
    RangeRead,
    ReadableBuffer,
    WritableBuffer,
    WriteResult,
)

T = TypeVar("T")
R = TypeVar("R", RangeRead, ObjectWrite, str)


def built_once(op: str, requests: Sequence[R]) -> Sequence[R]:
    """Return *requests*, each built once however often it is asked for, in the thread that asks first; keys as they are."""
    return LazySequence(len(requests), requests.__getitem__) if op in ("read", "write") else requests


class Layer(ObjectStore):
    """A store that passes everything on to *inner*. Subclasses override `single` and `batch`, or one operation.

    A layer owns its inner store: `close` closes both.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.name = inner.name
        self.capabilities = inner.capabilities

    def single(self, op: str, key: str, call: Callable[[], T]) -> T:
        """Perform one operation on one object. The hook of every method that is not a batch."""
        return call()

    def batch(self, op: str, requests: Sequence[R], call: Callable[[Sequence[R]], list[Outcome]]) -> list[Outcome]:
        """Perform a batch, or a part of it. The hook of every ``*_many``."""
        return call(requests)

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        return self.single("write", key, lambda: self.inner.write(key, parts))

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        return self.single("read", key, lambda: self.inner.read_into(key, offset, targets, object_nbytes=object_nbytes))

    def stat(self, key: str) -> ObjectInfo | None:
        return self.single("stat", key, lambda: self.inner.stat(key))

    def delete(self, key: str) -> bool:
        return self.single("delete", key, lambda: self.inner.delete(key))

    def quarantine(self, key: str) -> bool:
        return self.single("quarantine", key, lambda: self.inner.quarantine(key))

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list_keys(prefix)

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        return self.batch("read", reads, self.inner.read_many)

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        return self.batch("write", writes, self.inner.write_many)

    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self.batch("exists", keys, self.inner.exists_many)

    def delete_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self.batch("delete", keys, self.inner.delete_many)

    def touch_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self.batch("touch", keys, self.inner.touch_many)

    def register_memory(self, buffer: WritableBuffer) -> None:
        self.inner.register_memory(buffer)

    def unregister_memory(self, buffer: WritableBuffer) -> None:
        self.inner.unregister_memory(buffer)

    def close(self) -> None:
        self.inner.close()
