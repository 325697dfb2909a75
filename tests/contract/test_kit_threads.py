"""The kit's threads report what went wrong, also where a store never answers one of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures._base import DoneAndNotDoneFutures

import pytest

from hicache_storage.testing import hooks
from hicache_storage.testing.hooks import at_once

PATIENCE_S = 60.0


def test_all_tasks_run_together_and_results_come_in_their_order() -> None:
    together = threading.Barrier(3)

    def task(number: int) -> int:
        together.wait(PATIENCE_S)
        return number

    assert at_once(lambda: task(1), lambda: task(2), lambda: task(3)) == [1, 2, 3]


def test_an_error_is_raised_once_no_task_runs_any_more() -> None:
    failed = threading.Event()
    ended: list[str] = []

    def fail() -> None:
        failed.set()
        raise ZeroDivisionError

    def go_on() -> None:
        assert failed.wait(PATIENCE_S)
        ended.append("second")

    with pytest.raises(ZeroDivisionError):
        at_once(fail, go_on)

    assert ended == ["second"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for all tasks is over when the first of them has ended."""

    def until_the_first_has_ended(tasks: Sequence[Future[object]], _: float) -> DoneAndNotDoneFutures[object]:
        return wait(tasks, PATIENCE_S, FIRST_COMPLETED)

    monkeypatch.setattr(hooks, "wait", until_the_first_has_ended)


@pytest.mark.usefixtures("impatient")
def test_a_task_that_does_not_end_is_an_error_and_not_waited_for() -> None:
    go_on = threading.Event()
    ended: list[str] = []

    def hang() -> None:
        go_on.wait(PATIENCE_S)
        ended.append("late")

    try:
        with pytest.raises(TimeoutError, match="1 of 2 tasks"):
            at_once(hang, lambda: None)
        assert ended == []
    finally:
        go_on.set()


@pytest.mark.usefixtures("impatient")
def test_what_a_task_found_is_told_before_that_another_hangs() -> None:
    go_on = threading.Event()

    try:
        with pytest.raises(ZeroDivisionError):
            at_once(lambda: go_on.wait(PATIENCE_S), lambda: 1 // 0)
    finally:
        go_on.set()
