"""A capacity holds for the folder: for all its files, all instances and processes, and after a restart."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hicache_storage.backends.file import FileStore
from hicache_storage.errors import StoreFull
from hicache_storage.types import ObjectWrite, RangeRead, Status, WriteResult
from tests.backends.file.books import (
    PAGE,
    booked_nbytes,
    charged_nbytes,
    forbid_unlink,
    frozen_used_nbytes,
    there,
    used_nbytes,
)
from tests.processes import awaited

KIB = 1024

OpenStore = Callable[..., FileStore]
FileOf = Callable[[str], Path]


def test_two_instances_never_take_more_than_the_capacity(root: Path, open_store: OpenStore) -> None:
    stores = [open_store(capacity_nbytes=1 << 20) for _ in range(2)]
    done = threading.Event()
    samples: list[int] = []

    def sample() -> None:
        while not done.is_set():
            samples.append(frozen_used_nbytes(root))

    def fill(rank: int) -> list[Status]:
        writes = [ObjectWrite(f"rank-{rank}-page-{i}", [PAGE]) for i in range(160)]
        return [outcome.status for outcome in stores[rank].write_many(writes)]

    with ThreadPoolExecutor(3) as threads:
        sampler = threads.submit(sample)
        try:
            assert [set(statuses) for statuses in threads.map(fill, range(2))] == [{Status.STORED}] * 2
        finally:
            done.set()
        sampler.result()

    assert samples
    assert max(samples) <= 1 << 20
    assert booked_nbytes(root) == charged_nbytes(root)


def test_another_process_is_counted_too(root: Path, open_store: OpenStore) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from hicache_storage.backends.file import FileOptions, FileStore\n"
        "from hicache_storage.types import ObjectWrite\n"
        "with FileStore(FileOptions(path=Path(sys.argv[1]), capacity_nbytes=1 << 20)) as store:\n"
        "    assert all(store.write_many([ObjectWrite(f'theirs-{i}', [bytes(16384)]) for i in range(160)]))\n"
    )
    store = open_store(capacity_nbytes=1 << 20)

    with awaited(subprocess.Popen([sys.executable, "-c", code, str(root)])) as process:
        outcomes = [store.write(f"mine-{i}", [PAGE]) for i in range(160)]

    assert process.returncode == 0
    assert outcomes == [WriteResult.STORED] * 160
    assert used_nbytes(root) <= 1 << 20
    assert booked_nbytes(root) == charged_nbytes(root)


def test_the_least_recently_read_goes_first(open_store: OpenStore) -> None:
    store = open_store(capacity_nbytes=8 * len(PAGE), eviction_ratio=1.0)
    keys = [f"k{i}" for i in range(8)]
    for key in keys:
        store.write(key, [PAGE])
    assert all(store.read_many([RangeRead(key, 5, [bytearray(1)]) for key in ("k0", "k1")]))
    assert store.read_into("k2", 0, [bytearray(1)])
    assert store.touch_many(["k3"]) == store.exists_many(["k3"])
    assert store.write("k4", [PAGE]) is WriteResult.ALREADY_THERE

    store.write_many([ObjectWrite(f"new-{i}", [PAGE]) for i in range(3)])

    assert there(store, keys) == ["k0", "k1", "k2", "k3", "k4"]


def test_asking_whether_an_object_is_there_is_not_a_use(open_store: OpenStore) -> None:
    store = open_store(capacity_nbytes=2 * len(PAGE), eviction_ratio=1.0)
    store.write("old", [PAGE])
    store.write("young", [PAGE])

    assert store.stat("old") is not None
    assert store.exists_many(["old"])[0]
    store.write("new", [PAGE])

    assert there(store, ["old", "young", "new"]) == ["young", "new"]


@pytest.mark.parametrize("seed", range(3))
def test_eviction_follows_the_order_of_use_exactly(open_store: OpenStore, seed: int) -> None:
    rng = random.Random(seed)
    stores = [open_store(capacity_nbytes=16 * 4096, eviction_ratio=1.0) for _ in range(2)]
    model: OrderedDict[str, None] = OrderedDict()
    keys = [f"k{i}" for i in range(32)]

    for _ in range(400):
        store, key = rng.choice(stores), rng.choice(keys)
        if rng.random() < 0.5:
            assert store.read_into(key, 0, [bytearray(1)]) == (key in model)
        else:
            assert store.write(key, [b"x"]) is (WriteResult.ALREADY_THERE if key in model else WriteResult.STORED)
            model[key] = None
        if key in model:
            model.move_to_end(key)
        if len(model) > 16:
            model.popitem(last=False)

    assert there(stores[0], keys) == sorted(model, key=keys.index)


def test_an_eviction_makes_room_down_to_the_ratio(root: Path, open_store: OpenStore) -> None:
    store = open_store(capacity_nbytes=100 * 4096, eviction_ratio=0.5)
    for i in range(100):
        store.write(f"k{i}", [b"x"])

    store.write("one more", [b"x"])

    assert booked_nbytes(root) == 50 * 4096


def test_one_scan_serves_many_evictions(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(capacity_nbytes=100 * 4096, eviction_ratio=1.0)
    for i in range(101):
        store.write(f"k{i}", [b"x"])
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", None)
        patched.setattr(os, "listdir", None)
        for i in range(99):
            assert store.write(f"later-{i}", [b"x"]) is WriteResult.STORED

    assert there(store, ["k99", "k100", "later-0"]) == ["k100", "later-0"]


def test_an_object_larger_than_the_capacity_is_refused_and_evicts_nothing(open_store: OpenStore) -> None:
    store = open_store(capacity_nbytes=1 << 20)
    store.write("small", [PAGE])

    with pytest.raises(StoreFull, match="1052672 bytes needed, 16384 of 1048576 in use"):
        store.write("large", [bytes((1 << 20) + 1)])

    assert there(store, ["small", "large"]) == ["small"]


def test_large_writes_of_one_batch_wait_for_each_other(open_store: OpenStore) -> None:
    store = open_store(capacity_nbytes=1 << 20, io_threads=8)

    outcomes = store.write_many([ObjectWrite(f"k{i}", [bytes(600 * KIB)]) for i in range(12)])

    assert [outcome.status for outcome in outcomes] == [Status.STORED] * 12


def test_storing_again_replacing_and_deleting_twice_are_booked_once(
    root: Path, open_store: OpenStore, file_of: FileOf
) -> None:
    store = open_store(capacity_nbytes=1 << 20)
    long_key = "long" * 2000
    steps: list[Callable[[], object]] = [
        lambda: store.write("k", [PAGE]),
        lambda: store.write("k", [PAGE]),
        lambda: store.write("k", [PAGE * 3]),
        lambda: store.write(long_key, [PAGE]),
        lambda: store.write(long_key, [b"x"]),
        lambda: store.quarantine(long_key),
        lambda: store.delete("k"),
        lambda: store.delete("k"),
        lambda: store.write(long_key, [b"x"]),
        lambda: store.delete(long_key),
        lambda: store.quarantine("k"),
    ]
    for step in steps:
        step()
        assert booked_nbytes(root) == charged_nbytes(root)

    assert booked_nbytes(root) == 4096  # what is in quarantine


def test_quarantined_files_count_and_go_before_any_object(root: Path, open_store: OpenStore) -> None:
    store = open_store(capacity_nbytes=4 * len(PAGE), eviction_ratio=1.0)
    store.write("old", [PAGE])
    store.write("bad", [PAGE])
    store.quarantine("bad")
    assert booked_nbytes(root) == 2 * len(PAGE)

    for i in range(3):
        store.write(f"k{i}", [PAGE])

    assert there(store, ["old", "k0", "k1", "k2"]) == ["old", "k0", "k1", "k2"]
    assert list((root / "quarantine").iterdir()) == []


def test_a_reopened_store_knows_its_use_and_order(root: Path, open_store: OpenStore) -> None:
    keys = [f"k{i}" for i in range(8)]
    with open_store(capacity_nbytes=1 << 20) as store:
        for key in keys:
            store.write(key, [PAGE])
        store.read_into("k0", 0, [bytearray(1)])

    store = open_store(capacity_nbytes=4 * len(PAGE), eviction_ratio=1.0)

    assert booked_nbytes(root) == charged_nbytes(root) == 4 * len(PAGE)
    assert there(store, keys) == ["k0", "k5", "k6", "k7"]


def test_what_a_smaller_store_has_left_is_not_counted_again_when_it_is_put_again(
    root: Path, open_store: OpenStore
) -> None:
    keys = [f"k{i}" for i in range(8)]
    with open_store(capacity_nbytes=1 << 20) as store:
        store.write_many([ObjectWrite(key, [PAGE]) for key in keys])
    store = open_store(capacity_nbytes=4 * len(PAGE), eviction_ratio=1.0)
    left = there(store, keys)
    assert len(left) == 4

    again = [outcome.status for outcome in store.write_many([ObjectWrite(key, [PAGE]) for key in left])]

    assert again == [Status.ALREADY_THERE] * 4
    assert there(store, keys) == left
    assert booked_nbytes(root) == charged_nbytes(root) == 4 * len(PAGE)


def test_the_first_to_open_counts_what_is_there(root: Path, open_store: OpenStore, file_of: FileOf) -> None:
    with open_store(capacity_nbytes=1 << 20) as store:
        store.write("k", [PAGE])
    (root / ".ledger").write_text("99999999999999999999\n")

    store = open_store(capacity_nbytes=1 << 20)

    assert booked_nbytes(root) == len(PAGE)


def test_lost_books_are_made_again(root: Path, open_store: OpenStore) -> None:
    store = open_store(capacity_nbytes=1 << 20)
    store.write("k", [PAGE])
    (root / ".ledger").unlink()

    store.write("l", [PAGE])

    assert booked_nbytes(root) == 2 * len(PAGE)


def test_an_instance_without_a_capacity_keeps_the_books_of_the_others(root: Path, open_store: OpenStore) -> None:
    open_store(capacity_nbytes=1 << 20)
    other = open_store()

    other.write("k", [PAGE * 100])

    assert booked_nbytes(root) == 100 * len(PAGE)


def test_without_a_capacity_nobody_keeps_books(root: Path, open_store: OpenStore, file_of: FileOf) -> None:
    with open_store(capacity_nbytes=1 << 20) as store:
        store.write("k", [PAGE])
    os.utime(file_of("k"), (0, 0))

    store = open_store()
    store.write("l", [PAGE])
    store.read_into("k", 0, [bytearray(1)])

    assert (root / ".ledger").read_bytes() == b""
    assert file_of("k").stat().st_mtime == 0


def test_an_orphan_gives_its_reservation_back(root: Path, open_store: OpenStore) -> None:
    store = open_store(capacity_nbytes=1 << 20)
    store.write("k", [PAGE])
    (root / "tmp" / f"{'0' * 16}.1.1.token.{len(PAGE)}.0").write_bytes(b"half")
    (root / ".ledger").unlink()
    store.delete("unknown")
    assert booked_nbytes(root) == 2 * len(PAGE)

    open_store(capacity_nbytes=1 << 20, orphan_age_s=0)

    assert booked_nbytes(root) == len(PAGE)


def test_a_file_that_cannot_be_removed_is_passed_over(
    open_store: OpenStore, file_of: FileOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(capacity_nbytes=4 * len(PAGE), eviction_ratio=1.0)
    for i in range(4):
        store.write(f"k{i}", [PAGE])
    forbid_unlink(monkeypatch, lambda path: path == str(file_of("k0")))

    for i in range(8):
        assert store.write(f"new-{i}", [PAGE]) is WriteResult.STORED

    assert there(store, ["k0", "k1", "new-4", "new-5", "new-6", "new-7"]) == ["k0", "new-5", "new-6", "new-7"]


def test_a_file_that_could_not_be_removed_once_goes_later(
    root: Path, open_store: OpenStore, file_of: FileOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(capacity_nbytes=4 * len(PAGE), eviction_ratio=1.0)
    for i in range(4):
        store.write(f"k{i}", [PAGE])
    refusals = iter([True])
    forbid_unlink(monkeypatch, lambda path: path == str(file_of("k0")) and next(refusals, False))

    assert store.write("new", [PAGE]) is WriteResult.STORED
    assert there(store, ["k0", "k1"]) == ["k0"]
    for i in range(4):
        assert store.write(f"new-{i}", [PAGE]) is WriteResult.STORED

    assert there(store, ["k0", "k1", "k2", "k3"]) == []
    assert booked_nbytes(root) == charged_nbytes(root)


def test_a_store_of_which_nothing_can_be_removed_is_full(
    root: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(capacity_nbytes=4 * len(PAGE))
    for i in range(4):
        store.write(f"k{i}", [PAGE])
    with monkeypatch.context() as patched:
        forbid_unlink(patched, lambda path: "/objects/" in path)
        with pytest.raises(StoreFull):
            store.write("new", [PAGE])
        assert isinstance(store.write_many([ObjectWrite("new", [PAGE])])[0].error, StoreFull)

    assert booked_nbytes(root) == charged_nbytes(root)
    assert store.write("new", [PAGE]) is WriteResult.STORED


@pytest.mark.parametrize("capacity_nbytes", [None, 1 << 20])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_device_evicts_a_little_and_tries_once_more(
    open_store: OpenStore, file_of: FileOf, monkeypatch: pytest.MonkeyPatch, capacity_nbytes: int | None, code: int
) -> None:
    store = open_store(capacity_nbytes=capacity_nbytes)
    keys = [f"k{i}" for i in range(20)]
    for second, key in enumerate(keys):
        store.write(key, [PAGE])
        os.utime(file_of(key), (second, second))
    fail_first_writes(monkeypatch, 1, code)

    assert store.write("new", [PAGE]) is WriteResult.STORED

    assert there(store, keys) == keys[4:]


def test_a_device_that_stays_full_is_reported_after_one_retry(
    open_store: OpenStore, temps: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    for i in range(20):
        store.write(f"k{i}", [PAGE])
    with monkeypatch.context() as patched:
        attempts = fail_first_writes(patched, 1000, errno.ENOSPC)
        with pytest.raises(StoreFull):
            store.write("new", [PAGE])
        assert len(attempts) == 2

    assert temps() == []
    assert store.write("new", [PAGE]) is WriteResult.STORED


def fail_first_writes(monkeypatch: pytest.MonkeyPatch, count: int, code: int) -> list[int]:
    real = os.pwritev
    attempts: list[int] = []

    def failing(fd: int, parts: list[bytes], offset: int) -> int:
        attempts.append(fd)
        if len(attempts) <= count:
            raise OSError(code, os.strerror(code))
        return real(fd, parts, offset)

    monkeypatch.setattr(os, "pwritev", failing)
    return attempts
