"""A store's own I/O threads. One hop into the pool serves a whole group of requests."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeVar

from hicache_storage.daemon_pool import DaemonPool

T = TypeVar("T")


class IOThreads:
    """Up to *count* threads that work on one group of requests: the caller's own and those of a pool.

    The pool is made when it is first needed, and again in a process that was forked. Its threads keep no process alive,
    also while one is inside a call that does not return.
    """

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self._name = name
        self._pool: tuple[int, DaemonPool] | None = None

    def run(self, work: Callable[[T], None], tasks: Sequence[T]) -> None:
        """*work* has run once for each of *tasks*, and no thread is at it any more.

        Threads take the next task from one shared queue, so a slow one delays no other.

        Raises:
            BaseException: what *work* raised first; tasks not begun by then are dropped.
        """
        pending = deque(tasks)

        def drain() -> None:
            try:
                while True:
                    try:
                        task = pending.popleft()
                    except IndexError:
                        return
                    work(task)
            finally:
                pending.clear()

        self.share(drain, len(tasks))

    def share(self, drain: Callable[[], None], tasks: int) -> None:
        """*drain* has returned on every thread that began it, the caller's among them.

        It takes its tasks from a queue that the threads share and returns when that is empty.

        Args:
            tasks: how many there are; no more threads than that are asked for.

        Raises:
            BaseException: what *drain* raised on one of the threads.
        """
        # The pool's threads keep what they ran for a moment after its result is there. What they keep is
        # this list, empty by then, so that nobody holds the caller's buffers any more when this returns.
        errand = [drain]
        helpers = self._start(errand, min(self.count, tasks) - 1)
        try:
            drain()
        finally:
            started = [helper for helper in helpers if not helper.cancel()]
            wait(started)
            errand.clear()
        for helper in started:
            helper.result()

    def close(self) -> None:
        """The pool's threads have ended; a later `run` does everything on the caller's thread."""
        pool = self._pool
        if pool is not None and pool[0] == os.getpid():
            pool[1].close(wait=True)

    def _start(self, errand: list[Callable[[], None]], helpers: int) -> list[Future[None]]:
        started: list[Future[None]] = []
        try:
            for _ in range(helpers):
                started.append(self._current().submit(partial(_run, errand)))  # noqa: PERF401 - keeps those before a refusal
        except RuntimeError:
            # The pool is closed, or the system has no thread left: the caller's own thread does the work.
            pass
        return started

    def _current(self) -> DaemonPool:
        pool, pid = self._pool, os.getpid()
        if pool is None or pool[0] != pid:
            pool = self._pool = (pid, DaemonPool(self.count, f"hicache-{self._name}"))
        return pool[1]


def _run(errand: list[Callable[[], None]]) -> None:
    errand[0]()
