"""Many writers, readers, instances and forked processes on one folder."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from hicache_storage.backends import io_threads
from hicache_storage.backends.file import FileOptions, FileStore
from hicache_storage.daemon_pool import DaemonPool
from hicache_storage.errors import StoreUnavailable
from hicache_storage.types import ObjectWrite, RangeRead, WriteResult

T = TypeVar("T")

DEADLINE_S = 60

FORKING = """
import os, sys
from pathlib import Path
from hicache_storage.backends.file import FileOptions, FileStore
from hicache_storage.types import ObjectWrite, RangeRead
store = FileStore(FileOptions(path=Path(sys.argv[1]), io_threads=4, capacity_nbytes=int(sys.argv[2]) or None))
def works(name):
    keys = [f"{name}-{i}" for i in range(16)]
    targets = [bytearray(3) for _ in keys]
    stored = store.write_many([ObjectWrite(key, [b"abc"]) for key in keys])
    found = store.read_many([RangeRead(key, 0, [target]) for key, target in zip(keys, targets)])
    return all(stored) and all(found) and targets == [b"abc"] * 16
assert works("before")
child = os.fork()
if child == 0:
    os._exit(0 if works("child") else 1)
assert works("parent")
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_paused_writer_and_a_failing_one_do_not_tear_the_object(
    draft_kind: str, store: FileStore, temps: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = bytes(range(64))
    reached, resumed = threading.Event(), threading.Event()
    publishing = "link" if draft_kind == "unnamed" else "replace"
    publish, pwritev = getattr(os, publishing), os.pwritev
    names: set[str] = set()

    def pausing_publish(*arguments: str, **options: int) -> None:
        names.update(temps())
        reached.set()
        assert resumed.wait(DEADLINE_S)
        publish(*arguments, **options)

    def half_then_error(fd: int, parts: list[bytes], offset: int) -> int:
        if not reached.is_set():
            return pwritev(fd, parts, offset)
        pwritev(fd, [body[:32]], offset)
        names.update(temps())
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, publishing, pausing_publish)
    monkeypatch.setattr(os, "pwritev", half_then_error)

    with ThreadPoolExecutor(1) as other:
        first = other.submit(store.write, "key", [body])
        assert reached.wait(DEADLINE_S)
        with pytest.raises(StoreUnavailable):
            store.write("key", [body])
        resumed.set()
        assert first.result(DEADLINE_S) is WriteResult.STORED

    target = bytearray(64)
    assert store.read_into("key", 0, [target], object_nbytes=64)
    assert target == body
    assert temps() == []
    assert len(names) == (0 if draft_kind == "unnamed" else 2)


def test_eight_threads_of_two_hundred_writes_never_show_a_short_object(
    draft_kind: str, store: FileStore, temps: Callable[[], list[str]]
) -> None:
    body = bytes(range(64))
    start = threading.Barrier(8)

    def use(thread: int) -> set[bytes]:
        seen: set[bytes] = set()
        start.wait(DEADLINE_S)
        for i in range(200):
            store.write("key", [body[:20], body[20:]])
            target = bytearray(64)
            if store.read_into("key", 0, [target], object_nbytes=64):
                seen.add(bytes(target))
            if i % 8 == thread:
                store.delete("key")
        return seen

    with ThreadPoolExecutor(8) as threads:
        assert set().union(*threads.map(use, range(8))) == {body}
    assert temps() == []


def test_a_batch_costs_one_hop_per_thread_and_not_per_object(
    open_store: Callable[..., FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    hops: list[object] = []

    class CountingPool(DaemonPool):
        def submit(self, call: Callable[[], T]) -> Future[T]:
            hops.append(call)
            return super().submit(call)

    monkeypatch.setattr(io_threads, "DaemonPool", CountingPool)
    store = open_store(io_threads=4)
    keys = [f"k{i}" for i in range(100)]

    assert all(store.write_many([ObjectWrite(key, [b"x"]) for key in keys]))
    written = len(hops)
    assert all(store.read_many([RangeRead(key, 0, [bytearray(1)]) for key in keys]))

    assert written <= 4
    assert len(hops) - written <= 4


def test_a_single_transfer_stays_on_the_callers_thread(
    open_store: Callable[..., FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_threads, "DaemonPool", None)
    store = open_store(io_threads=4)

    assert store.write("key", [b"x"]) is WriteResult.STORED
    assert store.read_into("key", 0, [bytearray(1)])
    assert all(store.read_many([RangeRead("key", 0, [bytearray(1)])] * 2))


def test_two_ranges_of_one_key_share_a_descriptor(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write("a", [bytes(range(100))])
    store.write("b", [bytes(range(100))])
    opened: list[str] = []
    real = os.open

    def note(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        opened.append(path)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", note)
    targets = [bytearray(10) for _ in range(6)]

    reads = [RangeRead(key, 10 * i, [target]) for i, (key, target) in enumerate(zip("aabbaa", targets, strict=True))]
    assert all(store.read_many(reads))

    assert len(opened) == 3
    assert targets == [bytes(range(10 * i, 10 * i + 10)) for i in range(6)]


def test_a_callback_that_raises_is_the_callers_to_see_and_ends_the_batch(store: FileStore) -> None:
    keys = [f"k{i}" for i in range(40)]
    store.write_many([ObjectWrite(key, [b"x"]) for key in keys])

    def raising(_: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.read_many([RangeRead(key, 0, [bytearray(1)], on_filled=raising) for key in keys])
    assert all(store.read_many([RangeRead(key, 0, [bytearray(1)]) for key in keys]))


@pytest.mark.parametrize("capacity_nbytes", [0, 1 << 20])
def test_a_forked_child_reads_and_writes(root: Path, capacity_nbytes: int) -> None:
    command = [sys.executable, "-c", FORKING, str(root), str(capacity_nbytes)]

    subprocess.run(command, check=True, timeout=DEADLINE_S)


def test_instances_that_are_opened_at_once_all_work(root: Path) -> None:
    start = threading.Barrier(8)

    def open_and_use(i: int) -> bool:
        start.wait(DEADLINE_S)
        with FileStore(FileOptions(path=root / "deep" / "er", capacity_nbytes=1 << 20 if i % 2 else None)) as store:
            return store.write(f"k{i}", [b"x"]) is WriteResult.STORED and store.read_into(f"k{i}", 0, [bytearray(1)])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(open_and_use, range(8))) == [True] * 8


def test_threads_do_not_pile_up(open_store: Callable[..., FileStore]) -> None:
    open_store().write_many([ObjectWrite(f"k{i}", [b"x"]) for i in range(20)])
    before = set(threading.enumerate())

    for _ in range(20):
        with open_store() as store:
            store.read_many([RangeRead(f"k{i}", 0, [bytearray(1)]) for i in range(20)])

    assert set(threading.enumerate()) <= before
