"""Counters that are exact under threads, and warnings that stay rare."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from hicache_storage import telemetry
from hicache_storage.telemetry import Counters, RareWarnings

THREADS = 8
ROUNDS = 1_000

log = logging.getLogger("telemetry.demo")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(telemetry, "time", SimpleNamespace(monotonic=clock))
    return clock


class Interrupted(str):
    """A name at whose every look-up another thread may take over."""

    __slots__ = ()

    def __hash__(self) -> int:
        return super().__hash__()


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns as often as the interpreter allows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_threads")
def test_counts_are_exact_under_threads() -> None:
    counters = Counters()
    name = Interrupted("a")
    start = threading.Barrier(THREADS, timeout=30)

    def count() -> None:
        start.wait()
        for _ in range(ROUNDS):
            counters.add(name)
            counters.add("b", 3)

    threads = [threading.Thread(target=count) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert counters.snapshot() == {"a": THREADS * ROUNDS, "b": 3 * THREADS * ROUNDS}


def test_what_was_never_counted_is_zero_and_not_listed() -> None:
    counters = Counters()

    counters.add("a", 0)

    assert counters["a"] == counters["b"] == 0
    assert counters.snapshot() == {}


def test_a_snapshot_is_the_callers() -> None:
    counters = Counters()
    counters.add("a")

    counters.snapshot()["a"] = 7

    assert counters["a"] == 1


def test_times_are_counted_by_the_bound_they_keep_and_summed_up() -> None:
    counters = Counters()

    for elapsed_s in (0.0, 0.001, 0.0011, 0.5, 31.0):
        counters.observe("call", elapsed_s)

    assert counters.times() == {
        "times.call.1": 2,
        "times.call.5": 1,
        "times.call.500": 1,
        "times.call.more": 1,
        "times.call.us": 31_502_100,
    }
    assert counters.snapshot() == {}


def test_names_of_counters_are_distinct() -> None:
    names = [value for name, value in vars(telemetry).items() if name.isupper() and isinstance(value, str)]

    assert len(names) == len(set(names)) > 10


def test_one_cause_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    warnings = RareWarnings(log)

    for second in (0, 1, 59, 60, 61, 119, 120):
        clock.now = 1000.0 + second
        warnings.warn("dead", "store.dead second=%d", second)

    assert [record.getMessage() for record in caplog.records] == [
        "store.dead second=0",
        "store.dead second=60",
        "store.dead second=120",
    ]


def test_another_cause_is_another_minute(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    warnings = RareWarnings(log)

    for cause in ("dead", "slow", "dead", "slow"):
        warnings.warn(cause, "store.%s", cause)

    assert [record.getMessage() for record in caplog.records] == ["store.dead", "store.slow"]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert {record.name for record in caplog.records} == {"telemetry.demo"}


def test_of_many_threads_with_one_cause_one_logs(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    warnings = RareWarnings(log)
    start = threading.Barrier(THREADS, timeout=30)

    def warn() -> None:
        start.wait()
        for _ in range(50):
            warnings.warn("dead", "store.dead")

    threads = [threading.Thread(target=warn) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert len(caplog.records) == 1


def test_the_traceback_comes_along_where_it_is_asked_for(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    warnings = RareWarnings(log)

    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        warnings.warn("bug", "store.unforeseen", exc_info=True)

    assert "ZeroDivisionError" in caplog.text
