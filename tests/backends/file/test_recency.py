"""Eviction goes by the order of use: exact along a list that is touched, for every instance, and after a restart."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from hicache_storage.backends.file import FileStore
from hicache_storage.types import MISS, ObjectWrite, RangeRead
from tests.backends.file.books import PAGE, there

OpenStore = Callable[..., FileStore]
FileOf = Callable[[str], Path]

PAGES = [f"page-{i:03}" for i in range(128)]
NOW_NS = 2_000_000_000_123_456_789

OPEN_WITH_ROOM_FOR_32 = """
import sys
from pathlib import Path
from hicache_storage.backends.file import FileOptions, FileStore
options = FileOptions(path=Path(sys.argv[1]), capacity_nbytes=int(sys.argv[2]), eviction_ratio=1.0)
with FileStore(options) as store:
    print(*sorted(info.key for info in store.list_keys()))
"""


def write_pages(store: FileStore, keys: list[str] = PAGES) -> None:
    assert all(store.write_many([ObjectWrite(key, [PAGE]) for key in keys]))


def used_ns(file_of: FileOf, keys: list[str]) -> list[int]:
    return [file_of(key).stat().st_mtime_ns for key in keys]


def strictly_increasing(times: list[int]) -> bool:
    return all(before < after for before, after in pairwise(times))


@pytest.fixture
def frozen_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock so coarse that it does not move during a test."""
    monkeypatch.setattr(time, "time_ns", lambda: NOW_NS)


def test_of_a_prefix_touched_from_its_end_the_first_pages_stay(root: Path, open_store: OpenStore) -> None:
    with open_store(capacity_nbytes=256 * len(PAGE)) as store:
        write_pages(store)
        assert all(store.read_many([RangeRead(key, 0, [bytearray(1)]) for key in PAGES]))
        assert all(store.touch_many(PAGES[::-1]))

    store = open_store(capacity_nbytes=32 * len(PAGE), eviction_ratio=1.0)

    assert there(store, PAGES) == PAGES[:32]


def test_another_process_sees_the_same_order(root: Path, open_store: OpenStore) -> None:
    with open_store(capacity_nbytes=256 * len(PAGE)) as store:
        write_pages(store)
        store.touch_many(PAGES[::-1])

    command = [sys.executable, "-c", OPEN_WITH_ROOM_FOR_32, str(root), str(32 * len(PAGE))]
    listed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    assert listed.split() == PAGES[:32]


def test_an_open_store_evicts_a_touched_prefix_from_its_end(open_store: OpenStore) -> None:
    store, other = (open_store(capacity_nbytes=128 * len(PAGE), eviction_ratio=1.0) for _ in range(2))
    write_pages(store)
    store.touch_many(PAGES[::-1])

    write_pages(other, [f"new-{i}" for i in range(96)])

    assert there(store, PAGES) == PAGES[:32]


def test_touching_keeps_the_order_of_its_keys_on_a_clock_that_stands(
    frozen_clock: None, open_store: OpenStore, file_of: FileOf
) -> None:
    store = open_store(capacity_nbytes=256 * len(PAGE))
    write_pages(store)

    store.touch_many(PAGES[::-1])

    assert strictly_increasing(used_ns(file_of, PAGES[::-1]))


def test_the_last_to_touch_decides_whatever_instance_it_is(
    frozen_clock: None, open_store: OpenStore, file_of: FileOf
) -> None:
    first, second = (open_store(capacity_nbytes=256 * len(PAGE)) for _ in range(2))
    write_pages(first)
    first.touch_many(PAGES)

    second.touch_many(PAGES[::-1])

    assert strictly_increasing(used_ns(file_of, PAGES[::-1]))


def test_each_use_is_later_than_the_one_before_also_when_the_clock_is_set_back(
    open_store: OpenStore, file_of: FileOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(capacity_nbytes=256 * len(PAGE))
    clock = iter(range(NOW_NS, 0, -1_000_000_000))
    monkeypatch.setattr(time, "time_ns", lambda: next(clock))

    store.write("written", [PAGE])
    store.write("read", [PAGE])
    assert store.read_into("read", 0, [bytearray(1)])
    store.touch_many(["written"])

    assert strictly_increasing(used_ns(file_of, ["read", "written"]))


def test_a_key_that_is_touched_twice_counts_from_its_last_place(open_store: OpenStore, file_of: FileOf) -> None:
    store = open_store(capacity_nbytes=256 * len(PAGE))
    write_pages(store, ["a", "b", "c"])

    outcomes = store.touch_many(["a", "b", "missing", "c", "a"])

    assert outcomes.count(MISS) == 1
    assert strictly_increasing(used_ns(file_of, ["b", "c", "a"]))


def test_touching_a_group_costs_two_calls_a_key_and_no_thread(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(capacity_nbytes=256 * len(PAGE))
    write_pages(store)
    calls: list[str] = []
    stat, utime = os.stat, os.utime

    def counted_stat(path: str) -> os.stat_result:
        calls.append("stat")
        return stat(path)

    def counted_utime(path: str, *, ns: tuple[int, int]) -> None:
        calls.append("utime")
        utime(path, ns=ns)

    monkeypatch.setattr(os, "stat", counted_stat)
    monkeypatch.setattr(os, "utime", counted_utime)
    for name in ("open", "scandir", "listdir"):
        monkeypatch.setattr(os, name, None)
    monkeypatch.setattr(store, "_threads", None)

    outcomes = store.touch_many(PAGES)
    monkeypatch.undo()

    assert all(outcomes)
    assert calls == ["stat"] * len(PAGES) + ["utime"] * len(PAGES)
