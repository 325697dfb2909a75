"""What every backend's own threads owe their caller."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import pytest

from hicache_storage.backends import io_threads
from hicache_storage.backends.io_threads import IOThreads

P = ParamSpec("P")
T = TypeVar("T")


class Work:
    """Something that holds the caller's buffers while it works."""

    def __call__(self, task: int) -> None:
        pass


def test_nobody_holds_the_work_when_the_call_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[tuple[object, ...]] = []

    class Remembering(ThreadPoolExecutor):
        """Keeps what it was given for good, as a pool's thread does for a moment."""

        def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
            submitted.append((fn, *args))
            return super().submit(fn, *args, **kwargs)

    monkeypatch.setattr(io_threads, "ThreadPoolExecutor", Remembering)
    threads = IOThreads(4, "test")
    work = Work()
    seen = weakref.ref(work)
    gc.disable()
    try:
        threads.run(work, range(16))
        del work
        assert submitted
        assert seen() is None
    finally:
        gc.enable()
        threads.close()


def test_what_a_task_raises_reaches_the_caller_and_the_threads_go_on() -> None:
    threads = IOThreads(4, "test")

    def failing(task: int) -> None:
        if task == 7:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        threads.run(failing, range(16))
    done: list[int] = []
    threads.run(done.append, range(16))
    threads.close()
    assert sorted(done) == list(range(16))
