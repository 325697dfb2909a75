"""A store in which any call may go wrong, the same ones in every run: what goes wrong depends on the call, not on the time."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from zlib import crc32

from hicache_storage.errors import AccessDenied, CorruptObject, StoreFull, StoreUnavailable
from hicache_storage.store import ObjectStore
from hicache_storage.types import ObjectInfo, ReadableBuffer, WritableBuffer, WriteResult

FAULTS: tuple[Callable[[], BaseException], ...] = (
    lambda: StoreUnavailable("planted"),
    lambda: StoreFull("planted"),
    lambda: AccessDenied("planted"),
    lambda: CorruptObject("planted"),
    lambda: OSError(5, "planted"),
    lambda: TimeoutError("planted"),
    lambda: ValueError("planted"),
    lambda: asyncio.CancelledError("planted"),
)
"""What backends raise: their own errors, and whatever a bug or an SDK lets through."""


def planted(number: int) -> BaseException:
    """Return one of the faults."""
    return FAULTS[number % len(FAULTS)]()


class FlakyStore(ObjectStore):
    """Answers like *inner*, except that of 1,000 calls *per_mille* fail, or lie where a store can lie.

    Attributes:
        per_mille: may be changed at any time; 1,000 is a dead store.
        on_write: called after each write that has stored something, in the thread that wrote.
    """

    name = "flaky"

    def __init__(self, inner: ObjectStore, *, seed: int = 0, per_mille: int = 0) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities
        self.per_mille = per_mille
        self.on_write: Callable[[str], None] = lambda _: None
        self._seed = seed
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        draw = self._draw("write", key)
        if draw is not None and draw % 2:
            raise planted(draw)
        result = self.inner.write(key, parts)
        self.on_write(key)
        if draw is not None:
            raise planted(draw)  # the answer is lost, the object is there
        return result

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        draw = self._draw("read", key)
        if draw is None:
            return self.inner.read_into(key, offset, targets, object_nbytes=object_nbytes)
        if draw % 4 == 0:
            return False
        found = self.inner.read_into(key, offset, targets, object_nbytes=object_nbytes)
        if found and draw % 4 == 1:
            view = memoryview(targets[0]).cast("B")
            view[draw % len(view)] ^= 1
            return True
        raise planted(draw)

    def stat(self, key: str) -> ObjectInfo | None:
        draw = self._draw("stat", key)
        if draw is None:
            return self.inner.stat(key)
        if draw % 2:
            return None
        raise planted(draw)

    def delete(self, key: str) -> bool:
        draw = self._draw("delete", key)
        if draw is not None:
            raise planted(draw)
        return self.inner.delete(key)

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list_keys(prefix)

    def _draw(self, operation: str, key: str) -> int | None:
        """Return None where the call goes well, else a number that says what goes wrong."""
        with self._lock:
            call = f"{operation} {key}"
            self._calls[call] += 1
            draw = crc32(f"{self._seed} {call} {self._calls[call]}".encode())
        return draw // 1000 if draw % 1000 < self.per_mille else None
