"""A step that takes too long is acted upon; one that ends, however, is not, and leaves no thread."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from hicache_storage.watchdog import watchdog

PATIENCE_S = 60.0
LONG_S = 3600.0


def timers() -> list[threading.Timer]:
    """Return the watchdogs' threads: others may end meanwhile, if an earlier test has left them to do so."""
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_step_that_takes_too_long_is_acted_upon() -> None:
    acted = threading.Event()

    with watchdog(0.01, acted.set):
        assert acted.wait(PATIENCE_S)


def test_a_step_that_ends_is_left_alone() -> None:
    acted = threading.Event()

    with watchdog(LONG_S, acted.set):
        assert len(timers()) == 1

    assert timers() == []
    assert not acted.is_set()


def test_what_was_begun_has_ended_with_the_block() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def act() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        ended.set()

    with watchdog(0.01, act):
        assert begun.wait(PATIENCE_S)
        go_on.set()

    assert ended.is_set()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_step_that_raises_leaves_no_thread(error: type[BaseException]) -> None:
    with pytest.raises(error), watchdog(LONG_S, lambda: pytest.fail("nothing took too long")):
        raise error

    assert timers() == []


@pytest.mark.parametrize("is_running", [True, False], ids=["its thread runs", "its thread does not run"])
def test_an_interrupt_while_the_thread_starts_leaves_none(monkeypatch: pytest.MonkeyPatch, is_running: bool) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if is_running:
            start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)

    with pytest.raises(KeyboardInterrupt), watchdog(LONG_S, lambda: pytest.fail("nothing took too long")):
        pytest.fail("interrupted before")

    assert timers() == []


def test_an_interrupt_while_the_thread_is_on_its_way_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has its number, which `join` does not wait for, and has not said yet that it is there."""
    start, is_on_its_way, go_on = threading.Thread.start, threading.Event(), threading.Event()

    class Slow(threading.Event):
        def set(self) -> None:
            is_on_its_way.set()
            assert go_on.wait(PATIENCE_S)
            super().set()

        def wait(self, timeout: float | None = None) -> bool:
            assert is_on_its_way.wait(PATIENCE_S)
            raise KeyboardInterrupt

    started = Slow()

    def slow(thread: threading.Thread) -> None:
        monkeypatch.setattr(thread, "_started", started)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slow)

    with pytest.raises(KeyboardInterrupt), watchdog(LONG_S, lambda: pytest.fail("nothing took too long")):
        pytest.fail("interrupted before")
    (timer,) = timers()
    go_on.set()
    assert threading.Event.wait(started, PATIENCE_S)
    timer.join(PATIENCE_S)

    assert not timer.is_alive()


def test_a_process_ends_although_a_watchdog_was_never_called_off() -> None:
    code = f"from hicache_storage.watchdog import watchdog\nheld = watchdog({LONG_S}, print)\nheld.__enter__()"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE_S, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
