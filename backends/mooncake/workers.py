"""Threads for calls that cannot be interrupted, and callers who stop waiting for them.

A call into the SDK may block for much longer than a caller waits. It then keeps its thread, its slot and
whatever else it uses until the SDK returns; nothing of it is used for new work, and nothing it does afterwards
reaches the caller's memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue

from hicache_storage.types import Outcome


class Abandoned(Exception):
    """Nobody waits for this call any more."""


class Call:
    """Requests that one thread performs while another waits for their outcomes."""

    def __init__(self, work: Callable[[Call], None], run: range, ends_at: float) -> None:
        self.run = run
        self.ends_at = ends_at
        self.outcomes: list[Outcome | None] = [None] * len(run)
        self._work = work
        self._changed = threading.Condition()
        self._abandoned = False
        self._lent = False
        self._done = False
        self._bug: BaseException | None = None

    # -- the worker's side -----------------------------------------------------------------

    def perform(self) -> None:
        """The work is done, or nobody waits for it."""
        try:
            if self.wanted:
                self._work(self)
        except Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
            self._bug = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify()

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for it and it is not too late."""
        return not self._abandoned and time.monotonic() < self.ends_at

    @contextmanager
    def caller_memory(self) -> Iterator[None]:
        """Inside the block the caller's memory may be written: the caller does not leave before its end.

        Raises:
            Abandoned: the caller has left.
        """
        with self._changed:
            if self._abandoned:
                raise Abandoned
            self._lent = True
        try:
            yield
        finally:
            with self._changed:
                self._lent = False
                self._changed.notify()

    # -- the caller's side -----------------------------------------------------------------

    def wait(self) -> None:
        """The work is done, or the deadline is over and the worker will not touch the caller's memory again.

        Raises:
            BaseException: what the work raised, which is a bug.
        """
        with self._changed:
            while not self._done:
                left_s = self.ends_at - time.monotonic()
                if left_s <= 0 and not self._lent:
                    self._abandoned = True
                    return
                self._changed.wait(left_s if left_s > 0 else None)
        if self._bug is not None:
            raise self._bug


class Workers:
    """At most *count* threads that perform calls in order. They are made as they are needed.

    They are daemons, so that a call which never returns does not keep the process alive.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._changed = threading.Condition()
        self._idle = 0
        self._made = 0
        self._busy = 0
        self._finished = False
        self._queue: SimpleQueue[Call] = SimpleQueue()

    def perform(self, calls: Sequence[Call]) -> None:
        """Every call is done or abandoned at its deadline."""
        with self._changed:
            # Where the system has no thread left, those that are there do it, or the deadline ends it.
            with suppress(RuntimeError):
                for _ in range(min(len(calls) - self._idle, self._count - self._made)):
                    threading.Thread(target=self._serve, name="hicache-mooncake", daemon=True).start()
                    self._made += 1
            for call in calls:
                self._idle -= 1
                self._queue.put(call)
        for call in calls:
            call.wait()

    def finish(self, within_s: float) -> None:
        """No thread is inside a call, or *within_s* are over. No call begins any more."""
        with self._changed:
            self._finished = True
            self._changed.wait_for(lambda: self._busy == 0, within_s)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
            call = self._queue.get()
            with self._changed:
                if self._finished:
                    return
                self._busy += 1
            call.perform()
            del call  # It holds the caller's buffers.
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()
