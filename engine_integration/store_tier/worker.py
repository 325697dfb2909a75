"""A thread that performs operations one after another and never dies of one."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Worker(Generic[T]):
    """Performs what is submitted, in order, on one thread.

    Operations come from the scheduler in the same order on every rank, so that the collectives inside
    them meet; parallelism is inside one operation.

    Args:
        perform: the work; acknowledges its operation itself.
        fail: acknowledges an operation whose *perform* raised. Must not raise.
    """

    def __init__(self, name: str, perform: Callable[[T], None], fail: Callable[[T, BaseException], None]) -> None:
        self._perform = perform
        self._fail = fail
        self._queue: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, operation: T) -> None:
        """Queue *operation*; every one submitted before `close` is acknowledged."""
        self._queue.put(operation)

    def close(self, timeout_s: float | None = None) -> bool:
        """Perform what is queued, then end the thread; return whether it ended within *timeout_s*."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (operation := self._queue.get()) is not None:
            try:
                self._perform(operation)
            except BaseException as error:  # noqa: BLE001 - an SDK's panic or cancellation is one too; the thread lives
                _log.exception("worker.fault thread=%s", self._thread.name)
                self._fail(operation, error)
