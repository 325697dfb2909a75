"""A pool's threads do what they are given, and hold up nothing: no caller, no end of a process."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from functools import partial

import pytest

from hicache_storage.daemon_pool import DaemonPool
from tests.processes import awaited

PATIENCE_S = 60.0

STUCK = """
import threading
from hicache_storage.daemon_pool import DaemonPool
pool = DaemonPool(1, "stuck")
began = threading.Event()

def hang():
    began.set()
    threading.Event().wait()

pool.submit(hang)
behind = pool.submit(print)
began.wait()
pool.close(wait=False, cancel=True)
assert behind.cancelled()
"""


def test_calls_are_performed_and_their_results_and_errors_handed_over() -> None:
    pool = DaemonPool(2, "test")

    good, bad = pool.submit(lambda: 7), pool.submit(lambda: 1 // 0)

    assert good.result(PATIENCE_S) == 7
    assert isinstance(bad.exception(PATIENCE_S), ZeroDivisionError)
    assert pool.submit(lambda: 8).result(PATIENCE_S) == 8
    pool.close(wait=True)


def test_as_many_calls_as_there_are_threads_run_at_once() -> None:
    together = threading.Barrier(3)
    pool = DaemonPool(3, "test")

    calls = [pool.submit(lambda: together.wait(PATIENCE_S)) for _ in range(3)]

    assert {call.result(PATIENCE_S) for call in calls} == {0, 1, 2}
    pool.close(wait=True)


def test_no_more_threads_are_started_than_there_are_calls_or_than_are_allowed() -> None:
    pool = DaemonPool(2, "test")

    pool.submit(int).result(PATIENCE_S)
    after_one = len(pool._threads)
    for call in [pool.submit(int) for _ in range(20)]:
        call.result(PATIENCE_S)

    assert (after_one, len(pool._threads) <= 2) == (1, True)
    pool.close(wait=True)
    assert not any(thread.is_alive() for thread in pool._threads)


def test_a_thread_that_has_nothing_to_do_takes_the_next_call() -> None:
    pool = DaemonPool(2, "test")

    pool.submit(int).result(PATIENCE_S)
    assert pool._idle.acquire(timeout=PATIENCE_S)  # It says so a moment after the result is there.
    pool._idle.release()
    pool.submit(int).result(PATIENCE_S)

    assert len(pool._threads) == 1
    pool.close(wait=True)


def test_what_is_queued_is_done_before_the_threads_end() -> None:
    done: list[int] = []
    go_on = threading.Event()
    pool = DaemonPool(1, "test")
    pool.submit(lambda: go_on.wait(PATIENCE_S))
    for number in range(5):
        pool.submit(partial(done.append, number))

    pool.close(wait=False)
    go_on.set()
    pool.close(wait=True)

    assert done == list(range(5))


def test_a_closed_pool_takes_nothing() -> None:
    pool = DaemonPool(2, "test")
    pool.submit(int).result(PATIENCE_S)
    pool.close(wait=True)
    pool.close(wait=True, cancel=True)

    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(int)


def test_a_call_for_which_no_thread_can_be_started_is_not_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    performed: list[str] = []
    pool = DaemonPool(1, "test")

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            pool.submit(lambda: performed.append("first"))
    pool.submit(lambda: performed.append("second"))
    pool.close(wait=True)

    assert performed == ["second"]


def test_the_threads_of_a_pool_that_nobody_has_end() -> None:
    pool = DaemonPool(2, "forgotten")
    pool.submit(int).result(PATIENCE_S)
    mine = list(pool._threads)

    del pool
    gc.collect()
    for thread in mine:
        thread.join(PATIENCE_S)

    assert not any(thread.is_alive() for thread in mine)


def test_an_error_and_what_its_call_held_are_gone_with_the_future() -> None:
    class Held:
        def __call__(self) -> None:
            raise ZeroDivisionError

    pool = DaemonPool(1, "test")
    call = Held()
    seen = weakref.ref(call)
    future = pool.submit(call)
    assert future.exception(PATIENCE_S) is not None
    pool.close(wait=True)

    gc.disable()
    try:
        del call, future
        assert seen() is None
    finally:
        gc.enable()


def test_a_process_ends_although_a_call_never_returns() -> None:
    command = [sys.executable, "-c", STUCK]

    with awaited(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)) as process:
        said = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, said) == (0, (b"", b""))
