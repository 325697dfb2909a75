"""What every backend's own threads owe their caller."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import pytest

from hicache_storage.backends import io_threads
from hicache_storage.backends.io_threads import IOThreads
from hicache_storage.daemon_pool import DaemonPool
from tests.processes import awaited

T = TypeVar("T")

PATIENCE_S = 60.0

# Both threads of a batch are stuck, as on a mount that hangs; the caller's is nobody's to wait for.
STUCK = """
import threading
from hicache_storage.backends.io_threads import IOThreads
threads = IOThreads(2, "stuck")
stuck = threading.Barrier(3)

def hang(task):
    stuck.wait()
    threading.Event().wait()

threading.Thread(target=threads.run, args=(hang, range(2)), daemon=True).start()
stuck.wait()
"""


class Work:
    """Something that holds the caller's buffers while it works."""

    def __call__(self, task: int) -> None:
        pass


def test_nobody_holds_the_work_when_the_call_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[object] = []

    class Remembering(DaemonPool):
        """Keeps what it was given for good, as a pool's thread does for a moment."""

        def submit(self, call: Callable[[], T]) -> Future[T]:
            submitted.append(call)
            return super().submit(call)

    monkeypatch.setattr(io_threads, "DaemonPool", Remembering)
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


def test_a_process_ends_although_a_task_never_returns() -> None:
    with awaited(subprocess.Popen([sys.executable, "-c", STUCK], stderr=subprocess.PIPE)) as process:
        said = process.communicate(timeout=PATIENCE_S)[1]

    assert (process.returncode, said) == (0, b"")
