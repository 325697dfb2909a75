"""One rank's entries, made on its scheduler's thread and compared elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

from hicache_storage.engine_integration.consensus.entry import Entry, Event
from hicache_storage.errors import InvariantError, RankFailure

MAX_WAITING = 1 << 16


class Recorder:
    """Numbers what the scheduler does and hands it to the checker's threads.

    Args:
        sinks: called with each entry, in order, on the scheduler's thread; must not block.

    Attributes:
        waiting: entries that are still to be compared; None after the last one if there are too many.
        is_compared: cleared when comparing has ended; entries are then only given to the sinks.
        failure: makes a failure to be raised at the next call, once there is a reason.
    """

    def __init__(self, sinks: Sequence[Callable[[Entry], None]] = ()) -> None:
        self.waiting: SimpleQueue[Entry | None] = SimpleQueue()
        self.is_compared = True
        self.failure: Callable[[], RankFailure] | None = None
        self._sinks = tuple(sinks)
        self._next = 0

    def called(self, name: str, value: str) -> None:
        """Record a call.

        Raises:
            RankFailure: ranks have diverged, and the checker is to stop them.
        """
        if self.failure is not None:
            raise self.failure()
        self.record("call", name, value)

    def record(self, event: Event, name: str = "", value: str = "") -> None:
        entry = Entry(self._next, event, name, value, time.time())
        self._next += 1
        for sink in self._sinks:
            sink(entry)
        if not self.is_compared:
            return
        self.waiting.put(entry)
        if self.waiting.qsize() >= MAX_WAITING:
            # Another rank stands still, and the deadline of the group has not passed yet.
            self.give_up()

    def give_up(self) -> None:
        """Have no further entry compared."""
        self.is_compared = False
        self.waiting.put(None)


class _Here(threading.local):
    """The recorder of the thread that asks; other threads, also those of `asyncio.to_thread`, have none."""

    recorder: Recorder | None = None


_HERE = _Here()


def recorder_here() -> Recorder | None:
    """Return the recorder whose scheduler the calling thread is."""
    return _HERE.recorder


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Have decorated calls of this thread recorded, until it leaves.

    Raises:
        InvariantError: this thread records for another rank.
    """
    if _HERE.recorder is not None:
        raise InvariantError("this thread is the scheduler of a rank already")
    _HERE.recorder = recorder
    try:
        yield
    finally:
        _HERE.recorder = None
