"""Copying objects between stores on threads of our own: bounded, never two copies of one object at once."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hicache_storage.deadline import remaining_s


@dataclass(frozen=True, slots=True)
class Copy:
    """One object that is to be read whole from one store and written to others.

    Attributes:
        nbytes: the size it must have.
        source: number of the store that has it.
        targets: numbers of the stores that are to get it.
        is_write: it finishes a write, and is waited for when the store is closed.
    """

    key: str
    nbytes: int
    source: int
    targets: tuple[int, ...]
    is_write: bool


@dataclass(slots=True)
class _Books:
    """What one process has to do. *queued* and *running* have a key at most once each."""

    pid: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    queued: dict[str, Copy] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    held: Counter[str] = field(default_factory=Counter)
    threads: int = 0
    idle: int = 0


class Background:
    """Performs copies, first come first served, one at a time for each key.

    The threads start with the first copy and, being daemons, keep no process alive. A forked child
    begins with empty books: what is queued is its parent's to do.

    Args:
        perform: makes one copy; must not raise.
        limit: most copies that wait.
    """

    def __init__(self, perform: Callable[[Copy], None], *, threads: int, limit: int) -> None:
        self._perform = perform
        self._threads = threads
        self._limit = limit
        self._closed = False
        self._own_books = _Books(os.getpid())

    def submit(self, copy: Copy) -> bool:
        """Queue *copy* without waiting; say whether it, or one that makes it needless, will be made.

        The copy of a newer write takes the place of a queued one. A promotion comes after everything else.
        """
        books = self._books()
        with books.changed:
            if self._closed or books.held[copy.key]:
                return False
            known = copy.key in books.queued
            if not copy.is_write and (known or copy.key in books.running):
                return True
            if not known and len(books.queued) >= self._limit:
                return False
            books.queued[copy.key] = copy
            if books.idle < len(books.queued) and books.threads < self._threads:
                self._start(books)
            books.changed.notify_all()
        return True

    @contextmanager
    def held(self, keys: Sequence[str], wait_s: float) -> Iterator[set[str]]:
        """While in the block no copy of *keys* is queued, begun or under way.

        Yields:
            The keys of which that could not be achieved within *wait_s*, or the deadline.
        """
        books, wanted = self._books(), set(keys)
        with books.changed:
            books.held.update(wanted)
        try:
            with books.changed:
                for key in wanted & books.queued.keys():
                    del books.queued[key]
                books.changed.wait_for(lambda: wanted.isdisjoint(books.running), remaining_s(wait_s))
                busy = wanted & books.running
            yield busy
        finally:
            with books.changed:
                books.held -= Counter(wanted)

    def settle(self, wait_s: float) -> bool:
        """Wait until nothing is queued or under way; False if *wait_s* was not enough."""
        books = self._books()
        with books.changed:
            return books.changed.wait_for(lambda: not books.queued and not books.running, wait_s)

    def close(self, wait_s: float) -> int:
        """Promotions are dropped, writes finished within *wait_s*; return how many were not begun by then."""
        books = self._books()
        with books.changed:
            self._closed = True
            books.queued = {key: copy for key, copy in books.queued.items() if copy.is_write}
            books.changed.notify_all()
            books.changed.wait_for(lambda: not books.queued and not books.running, wait_s)
            dropped = len(books.queued)
            books.queued.clear()
            books.changed.notify_all()
        return dropped

    def _books(self) -> _Books:
        if self._own_books.pid != os.getpid():
            self._own_books = _Books(os.getpid())
        return self._own_books

    def _start(self, books: _Books) -> None:
        thread = threading.Thread(target=self._work, args=(books,), name="hicache-tiered", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return  # No thread left, or the interpreter ends; a later copy tries again.
        books.threads += 1

    def _work(self, books: _Books) -> None:
        while (copy := self._next(books)) is not None:
            try:
                self._perform(copy)
            finally:
                with books.changed:
                    books.running.discard(copy.key)
                    books.changed.notify_all()

    def _next(self, books: _Books) -> Copy | None:
        """Return the next copy, now counted as running; None once the store is closed and nothing is left to begin."""
        with books.changed:
            while True:
                key = next((key for key in books.queued if key not in books.running), None)
                if key is not None:
                    books.running.add(key)
                    return books.queued.pop(key)
                if self._closed:
                    return None
                books.idle += 1
                books.changed.wait()
                books.idle -= 1
