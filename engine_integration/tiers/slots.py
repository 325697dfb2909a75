"""Who holds which page of a tier, in exact books.

A page is free, held, or held and pinned: something moves its bytes right now, so it can be neither freed
nor given to somebody else. Whatever does not fit the books raises and changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from operator import index

from hicache_storage.errors import InvariantError, TierFull

_FREE, _HELD = b"\0", b"\1"
_SHORTEST_RUN = 8
"""Shorter runs are not searched for: looking for them takes longer than copying their pages one by one."""

_MAX_SHOWN = 8


class PageAllocator:
    """The pages ``[0, capacity)`` of one tier. Thread-safe; never blocks for a page.

    The answer depends on the order of the calls alone, so ranks that make the same calls hold the same pages.

    Cost: 512 of 100,000 pages are allocated and freed in about 0.1 ms; in a fragmented tier in 0.5 ms.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InvariantError(f"a tier of {capacity} pages holds nothing")
        self.capacity = capacity
        self._lock = threading.Lock()
        self._state = bytearray(capacity)
        self._num_free = capacity
        self._pins: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_held(self) -> int:
        return self.capacity - self._num_free

    @property
    def num_pinned(self) -> int:
        """How many pages are pinned at least once."""
        return len(self._pins)

    def is_held(self, page: int) -> bool:
        return 0 <= page < self.capacity and self._state[page] == 1

    def is_pinned(self, page: int) -> bool:
        return page in self._pins

    def held_pages(self) -> list[int]:
        """Return every page that is held, in ascending order."""
        with self._lock:
            return [page for page, state in enumerate(self._state) if state]

    def allocate(self, count: int) -> list[int]:
        """Return *count* pages that were free, in ascending order; all or none.

        The lowest run that is long enough; if there is none, the lowest runs of half the length, and so on.

        Raises:
            TierFull: fewer pages are free.
        """
        if count < 0:
            raise InvariantError(f"{count} pages cannot be allocated")
        with self._lock:
            if count > self._num_free:
                raise TierFull(f"{count} pages wanted, {self._num_free} of {self.capacity} are free")
            pages = self._take(count)
            self._num_free -= count
        pages.sort()
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Make *pages* free again, in any order; also part of what one call allocated.

        Raises:
            InvariantError: one of them is not held, is pinned, is named twice or is not of this tier.
        """
        ids = _ids(pages)
        with self._lock:
            self._check_held("free", ids)
            if not self._pins.keys().isdisjoint(ids):
                pinned = [page for page in ids if page in self._pins]
                raise InvariantError(f"cannot free {_shown(pinned)}: pinned by a transfer")
            for page in ids:
                self._state[page] = 0
            self._num_free += len(ids)

    def pin(self, pages: Iterable[int]) -> None:
        """Keep *pages* from being freed until each `pin` is matched by an `unpin`.

        Raises:
            InvariantError: as `free` does; pinned pages may be pinned again.
        """
        ids = _ids(pages)
        with self._lock:
            self._check_held("pin", ids)
            for page in ids:
                self._pins[page] = self._pins.get(page, 0) + 1

    def unpin(self, pages: Iterable[int]) -> None:
        """Undo one `pin` of each of *pages*.

        Raises:
            InvariantError: one of them is not pinned, or is named twice.
        """
        ids = _ids(pages)
        with self._lock:
            _check_unique("unpin", ids)
            missing = [page for page in ids if page not in self._pins]
            if missing:
                raise InvariantError(f"cannot unpin {_shown(missing)}: not pinned")
            for page in ids:
                self._pins[page] -= 1
                if not self._pins[page]:
                    del self._pins[page]

    def reset(self) -> None:
        """Make every page free. Whoever still holds pages must not free them: they may be somebody else's by then.

        Raises:
            InvariantError: a page is pinned.
        """
        with self._lock:
            if self._pins:
                raise InvariantError(f"cannot reset: {_shown(sorted(self._pins))} pinned by a transfer")
            self._state = bytearray(self.capacity)
            self._num_free = self.capacity

    def check(self) -> None:
        """Count everything again.

        Raises:
            InvariantError: the books do not add up.
        """
        with self._lock:
            free, held = self._state.count(_FREE), self._state.count(_HELD)
            if (free, free + held, len(self._state)) != (self._num_free, self.capacity, self.capacity):
                raise InvariantError(
                    f"{free} pages free and {held} held, the books say {self._num_free} free of {self.capacity}"
                )
            loose = [page for page, count in self._pins.items() if count < 1 or not self.is_held(page)]
            if loose:
                raise InvariantError(f"{_shown(loose)} pinned but not held")

    def _take(self, count: int) -> list[int]:
        """Mark *count* free pages as held; there are as many."""
        state = self._state
        taken: list[int] = []
        size, start = count, 0
        while size >= _SHORTEST_RUN:
            at = state.find(bytes(size), start)
            if at < 0:
                size, start = size // 2, 0
                continue
            start = at + size
            state[at:start] = _HELD * size
            taken += range(at, start)
            if count - len(taken) < size:
                size, start = count - len(taken), 0
        at = -1
        while len(taken) < count:
            at = state.find(0, at + 1)
            state[at] = 1
            taken.append(at)
        return taken

    def _check_held(self, verb: str, ids: Sequence[int]) -> None:
        _check_unique(verb, ids)
        foreign = [page for page in ids if not 0 <= page < self.capacity]
        if foreign:
            raise InvariantError(f"cannot {verb} {_shown(foreign)}: the tier has pages [0, {self.capacity})")
        if not all(map(self._state.__getitem__, ids)):
            wrong = [page for page in ids if not self._state[page]]
            raise InvariantError(f"cannot {verb} {_shown(wrong)}: not held, freed before")


def contiguous_runs(pages: Sequence[int]) -> Iterator[tuple[int, range]]:
    """Yield the longest runs of ascending neighbours in *pages*, each as (position of its first page, its pages)."""
    start = 0
    for position in range(1, len(pages) + 1):
        if position == len(pages) or pages[position] != pages[position - 1] + 1:
            yield start, range(pages[start], pages[position - 1] + 1)
            start = position


def _ids(pages: Iterable[int]) -> list[int]:
    """Return *pages* as plain integers: equal ids from an array must count as equal."""
    return [index(page) for page in pages]


def _check_unique(verb: str, ids: Sequence[int]) -> None:
    if len(set(ids)) != len(ids):
        seen: set[int] = set()
        twice = [page for page in ids if page in seen or seen.add(page)]  # type: ignore[func-returns-value]
        raise InvariantError(f"cannot {verb} {_shown(twice)}: named twice in one call")


def _shown(pages: Sequence[int]) -> str:
    """Return page ids for an error message, cut where there are many."""
    shown = ", ".join(map(str, pages[:_MAX_SHOWN]))
    rest = len(pages) - _MAX_SHOWN
    return f"page(s) {shown}" + (f" and {rest} more" if rest > 0 else "")
