"""Threads that work off a queue of calls and never hold up the end of the process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar

T = TypeVar("T")

_Errand: TypeAlias = tuple[Callable[[], None], Callable[[], bool]]
"""What performs a call, and what cancels it if it has not begun."""


class DaemonPool:
    """Up to *count* threads, started as they are needed, that perform calls in order.

    The interpreter waits for the threads of a `ThreadPoolExecutor` when it ends, whatever its `shutdown` was told: one
    that is inside a file system or a server that hangs would keep the process for ever. These are daemons. What they
    have not done when the process ends is lost, so whoever needs it done waits for its future. The threads of a pool
    that nobody has any more end by themselves.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._lock = threading.Lock()
        self._idle = threading.Semaphore(0)
        self._queue: SimpleQueue[_Errand | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        weakref.finalize(self, self._queue.put, None).atexit = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Have *call* performed; the future has its result.

        Raises:
            RuntimeError: the pool is closed, or the system has no thread left; nothing is queued.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the pool is closed")
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
                self._start()
            self._queue.put((partial(_perform, future, call), future.cancel))
        return future

    def close(self, *, wait: bool, cancel: bool = False) -> None:
        """Take no call any more; the threads end once they have done what is queued. Calling it again does nothing.

        Args:
            wait: return when they have ended.
            cancel: what has not begun is cancelled instead.
        """
        with self._lock:
            self._is_closed = True
            if cancel:
                self._cancel_queued()
            self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _start(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=_serve, args=(self._queue, self._idle), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _cancel_queued(self) -> None:
        while True:
            try:
                errand = self._queue.get_nowait()
            except Empty:
                return
            if errand is not None:
                errand[1]()


def _serve(queue: SimpleQueue[_Errand | None], idle: threading.Semaphore) -> None:
    while (errand := queue.get()) is not None:
        errand[0]()
        del errand  # It holds what the call does.
        idle.release()
    queue.put(None)  # for the next thread


def _perform(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the result
        future.set_exception(error)
        del future  # The error's traceback holds this frame, and the future the error.
