"""Memory that the SDK may touch: the caller's registered buffers, and the store's own slots."""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from bisect import bisect_right
from collections import Counter, deque

from hicache_storage.types import ReadableBuffer, nbytes_of

QUARANTINE_S = 300.0
"""How long a slot rests when a transfer into it never ended. The kernel tries to connect for 127 s at most, and
a connection that is made then is used for a transfer that the SDK reported as failed long before."""


def address_of(buffer: ReadableBuffer) -> int | None:
    """Return where *buffer* lies; None if it is empty or read-only, which is never memory to transfer from directly."""
    if nbytes_of(buffer) == 0 or isinstance(buffer, bytes) or (isinstance(buffer, memoryview) and buffer.readonly):
        return None
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


class Regions:
    """The memory that callers have registered, each range as often as it was. Lookups take no lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[int, int]] = Counter()
        self._sorted: tuple[list[int], list[int]] = ([], [])

    def add(self, address: int, nbytes: int) -> bool:
        """Count a range once more; say whether it is new."""
        with self._lock:
            self._counts[address, nbytes] += 1
            self._sort()
            return self._counts[address, nbytes] == 1

    def remove(self, address: int, nbytes: int) -> bool:
        """Count a range once less; say whether it is gone."""
        with self._lock:
            if self._counts[address, nbytes] > 1:
                self._counts[address, nbytes] -= 1
                return False
            known = self._counts.pop((address, nbytes), 0) > 0
            self._sort()
            return known

    def held(self) -> list[tuple[int, int]]:
        """Return address and size of every range."""
        with self._lock:
            return list(self._counts)

    def cover(self, address: int, nbytes: int) -> bool:
        """Whether all of a range lies in one registered range."""
        starts, stops = self._sorted
        at = bisect_right(starts, address) - 1
        return at >= 0 and address + nbytes <= stops[at]

    def address_of(self, buffer: ReadableBuffer) -> int | None:
        """Return where *buffer* lies if all of it is registered."""
        address = address_of(buffer)
        return address if address is not None and self.cover(address, nbytes_of(buffer)) else None

    def _sort(self) -> None:
        ranges = sorted(self._counts)
        self._sorted = ([address for address, _ in ranges], [address + nbytes for address, nbytes in ranges])


class Slot:
    """A part of the store's own transfer memory."""

    __slots__ = ("address", "nbytes", "view")

    def __init__(self, view: memoryview, address: int) -> None:
        self.view = view
        self.address = address
        self.nbytes = view.nbytes

    def fill(self, at: int, source: ReadableBuffer) -> None:
        """Copy *source* to *at*. Large copies let other threads run Python meanwhile."""
        nbytes = nbytes_of(source)
        if isinstance(source, bytes):
            ctypes.memmove(self.address + at, source, nbytes)
        elif (address := address_of(source)) is not None:
            ctypes.memmove(self.address + at, address, nbytes)
        else:
            self.view[at : at + nbytes] = memoryview(source).cast("B")

    def drain(self, at: int, target: ReadableBuffer, start: int, nbytes: int) -> None:
        """Copy *nbytes* from *at* into *target*, from its byte *start* on."""
        address = address_of(target)
        if address is None:
            raise TypeError("a target of a read must be writable")
        ctypes.memmove(address + start, self.address + at, nbytes)


class Slots:
    """A fixed number of slots in one piece of memory. What waits for one has a deadline."""

    def __init__(self, nbytes: int, count: int) -> None:
        slot_nbytes = nbytes // count // mmap.PAGESIZE * mmap.PAGESIZE
        self.nbytes = slot_nbytes * count
        self._memory = mmap.mmap(-1, self.nbytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        view = memoryview(self._memory)
        self._free = deque(
            Slot(view[start : start + slot_nbytes], self.address + start)
            for start in range(0, self.nbytes, slot_nbytes)
        )
        self._resting: deque[tuple[float, Slot]] = deque()
        self._changed = threading.Condition()

    def take(self, until: float) -> Slot | None:
        """Return a slot that nobody else has; None if there is none before the monotonic time *until*."""
        with self._changed:
            while True:
                now = time.monotonic()
                while self._resting and self._resting[0][0] <= now:
                    self._free.append(self._resting.popleft()[1])
                if self._free:
                    return self._free.pop()
                if now >= until:
                    return None
                self._changed.wait(until - now)

    def give_back(self, slot: Slot, *, in_doubt: bool) -> None:
        """Let others have *slot*: at once, or later if a transfer may still be at it."""
        with self._changed:
            if in_doubt:
                self._resting.append((time.monotonic() + QUARANTINE_S, slot))
            else:
                self._free.append(slot)
                self._changed.notify()
