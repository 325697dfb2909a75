"""Signals that end the process: the first unwinds it, none leaves anything half begun or half ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from types import FrameType

import pytest

from hicache_storage.interrupts import ENDING, heard_once, held, undisturbed
from tests.interrupting import handled_by

PATIENCE_S = 60.0


def raises(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _all_raise() -> Iterator[None]:
    with handled_by(raises, ENDING):
        yield


@pytest.mark.parametrize("number", ENDING)
def test_the_first_signal_unwinds_and_none_disturbs_that(number: int) -> None:
    unwound: list[int] = []

    def unwind() -> None:
        for again in ENDING:
            os.kill(os.getpid(), again)
            unwound.append(again)

    def work() -> None:
        with ExitStack() as undone:
            undone.callback(unwind)
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt), heard_once():
        work()

    assert unwound == list(ENDING)


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with heard_once():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize("number", ENDING)
def test_what_is_begun_is_known_before_a_signal_is_heard(number: int) -> None:
    begun: list[int] = []

    def begin() -> None:
        os.kill(os.getpid(), number)
        begun.append(number)

    with pytest.raises(KeyboardInterrupt), held():
        begin()

    assert begun == [number]


def test_every_signal_that_came_is_heard() -> None:
    heard: list[int] = []
    for number in ENDING:
        signal.signal(number, lambda number, _frame: heard.append(number))

    with held():
        for number in ENDING:
            os.kill(os.getpid(), number)
        assert heard == []

    assert sorted(heard) == sorted(ENDING)


def test_a_block_that_raises_hears_of_its_signals_too() -> None:
    def fail() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError("the block's own")

    with pytest.raises(KeyboardInterrupt), held():
        fail()


def test_a_process_that_is_started_meanwhile_can_be_ended() -> None:
    with held(), subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.terminate()
        assert process.wait(PATIENCE_S) == -signal.SIGTERM


def test_what_is_being_stopped_hears_of_no_signal() -> None:
    with undisturbed():
        for number in ENDING:
            os.kill(os.getpid(), number)


BLOCKS = [heard_once, held, undisturbed]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_handlers_are_those_from_before(block: Callable[[], AbstractContextManager[None]]) -> None:
    with block():
        pass

    assert [signal.getsignal(number) for number in ENDING] == [raises] * len(ENDING)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("number", ENDING)
def test_the_handlers_are_those_from_before_where_a_signal_comes_as_they_are_set(
    monkeypatch: pytest.MonkeyPatch, block: Callable[[], AbstractContextManager[None]], number: int
) -> None:
    install = signal.signal

    def interrupted(which: int, handler: Callable[[int, FrameType | None], None]) -> None:
        install(which, handler)
        if which == number:
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(signal, "signal", interrupted)

    with pytest.raises(KeyboardInterrupt), block():
        pytest.fail("interrupted before")

    assert [signal.getsignal(number) for number in ENDING] == [raises] * len(ENDING)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("number", ENDING)
def test_the_handlers_are_those_from_before_where_a_signal_comes_as_they_are_restored(
    monkeypatch: pytest.MonkeyPatch, block: Callable[[], AbstractContextManager[None]], number: int
) -> None:
    install = signal.signal

    def interrupted(which: int, handler: Callable[[int, FrameType | None], None]) -> None:
        if which == number:
            monkeypatch.undo()
            raise KeyboardInterrupt
        install(which, handler)

    with pytest.raises(KeyboardInterrupt), block():
        monkeypatch.setattr(signal, "signal", interrupted)

    assert [signal.getsignal(number) for number in ENDING] == [raises] * len(ENDING)


@pytest.mark.parametrize("block", BLOCKS)
def test_another_thread_leaves_the_handlers_alone(block: Callable[[], AbstractContextManager[None]]) -> None:
    seen: list[object] = []

    def look() -> None:
        with block():
            seen.extend(signal.getsignal(number) for number in ENDING)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(PATIENCE_S)

    assert seen == [raises] * len(ENDING)
