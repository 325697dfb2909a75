"""A store that evicts by use, and one that shows every moment of what is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from hicache_storage.errors import StoreUnavailable
from hicache_storage.store import ObjectStore
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from hicache_storage.types import (
    HIT,
    MISS,
    ObjectWrite,
    Outcome,
    ReadableBuffer,
    WritableBuffer,
    WriteResult,
)


class LeastRecentlyUsed(MemoryStore):
    """Holds *room* objects; writing one more evicts the one that was read, written or touched longest ago."""

    def __init__(self, room: int) -> None:
        super().__init__(MemoryOptions())
        self._room = room
        self._order: dict[str, None] = {}

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        result = super().write(key, parts)
        self._use(key)
        while len(self._order) > self._room:
            self.delete(next(iter(self._order)))
        return result

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        found = super().read_into(key, offset, targets, object_nbytes=object_nbytes)
        if found:
            self._use(key)
        return found

    def delete(self, key: str) -> bool:
        self._order.pop(key, None)
        return super().delete(key)

    def touch_many(self, keys: Sequence[str]) -> list[Outcome]:
        there = [key in self._order for key in keys]
        for key, found in zip(keys, there, strict=True):
            if found:
                self._use(key)
        return [HIT if found else MISS for found in there]

    def _use(self, key: str) -> None:
        self._order.pop(key, None)
        self._order[key] = None


class EveryMoment(MemoryStore):
    """Tells *saw* the keys that are stored after each single write and delete; writes a batch with some threads."""

    def __init__(
        self, saw: Callable[[set[str]], None], *, threads: int = 1, refuses: Callable[[str], bool] = lambda key: False
    ) -> None:
        super().__init__(MemoryOptions())
        self._saw = saw
        self._threads = threads
        self._refuses = refuses

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        if self._refuses(key):
            raise StoreUnavailable("refused", backend=self.name, op="write", key=key)
        result = super().write(key, parts)
        self._saw({info.key for info in self.list_keys()})
        return result

    def delete(self, key: str) -> bool:
        found = super().delete(key)
        self._saw({info.key for info in self.list_keys()})
        return found

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        if self._threads == 1:
            return super().write_many(writes)
        with ThreadPoolExecutor(self._threads) as pool:
            batches = pool.map(lambda index: ObjectStore.write_many(self, [writes[index]]), range(len(writes)))
            return [outcome for batch in batches for outcome in batch]
