"""What the file backend promises beyond the contract: hot paths, names, durability, closing, listing."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hicache_storage.backends.file import FileStore
from hicache_storage.errors import StoreUnavailable
from hicache_storage.types import ObjectWrite, RangeRead, Status, WriteResult

OpenStore = Callable[..., FileStore]
FileOf = Callable[[str], Path]

LONG_MODEL = f"/srv/models/{'m' * 300}/caf\u00e9 :\u4f60\u597d"


@pytest.mark.parametrize("capacity_nbytes", [None, 1 << 30])
def test_no_data_path_reads_a_directory(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, capacity_nbytes: int | None
) -> None:
    store = open_store(capacity_nbytes=capacity_nbytes)
    monkeypatch.setattr(os, "scandir", None)
    monkeypatch.setattr(os, "listdir", None)
    keys = [f"k{i}" for i in range(100)] + ["long" * 1000]

    assert {outcome.status for outcome in store.write_many([ObjectWrite(key, [b"x"]) for key in keys])} == {
        Status.STORED
    }
    assert store.write("k0", [b"x"]) is WriteResult.ALREADY_THERE
    assert all(store.read_many([RangeRead(key, 0, [bytearray(1)]) for key in keys]))
    assert all(store.exists_many(keys))
    assert all(store.touch_many(keys))
    assert store.stat("k1") is not None
    assert store.write("k1", [b"other size"]) is WriteResult.STORED
    assert all(store.delete_many(keys))


def test_five_thousand_objects_lie_in_folders_of_at_most_512_entries(store: FileStore, root: Path) -> None:
    assert all(store.write_many([ObjectWrite(f"page-{i}", [b""]) for i in range(5000)]))

    assert max(len(folders) + len(files) for _, folders, files in os.walk(root)) <= 512
    assert sum(1 for _ in store.list_keys()) == 5000


@pytest.mark.parametrize("key", [LONG_MODEL, "n" * 253, "n" * 255, "/" * 255, "\u00e9" * 10_000, "..", "a\0\n/"])
def test_a_key_of_any_length_and_alphabet_is_kept(store: FileStore, root: Path, key: str) -> None:
    target = bytearray(4)

    assert store.write(key, [b"body"]) is WriteResult.STORED
    assert store.read_into(key, 0, [target], object_nbytes=4)

    assert target == b"body"
    assert [(info.key, info.nbytes) for info in store.list_keys(key[:3])] == [(key, 4)]
    assert {path.parents[2] for path in root.rglob("*") if path.is_file() and path.read_bytes() == b"body"} == {
        root / "objects"
    }
    assert store.delete(key) is True
    assert [path for path in root.rglob("*") if path.is_file() and path.parent != root] == []


def test_files_that_no_key_leads_to_are_not_listed(store: FileStore, root: Path, file_of: FileOf) -> None:
    store.write("k", [b"x"])
    store.write("long" * 100, [b"x"])
    leaf = file_of("k").parent
    (leaf / "somebody's notes.txt").write_text("x")
    (leaf / "%FF").write_text("x")
    (leaf / "moved here").write_text("x")
    (leaf / "folder").mkdir()
    (root / "objects" / "notes").write_text("x")
    (root / "objects" / "00").mkdir(exist_ok=True)
    (root / "objects" / "00" / "notes").write_text("x")

    assert sorted(info.key for info in store.list_keys()) == ["k", "long" * 100]


def test_a_listing_bears_what_vanishes_meanwhile(store: FileStore, root: Path) -> None:
    keys = [f"k{i}" for i in range(50)] + ["long" * 100 + str(i) for i in range(10)]
    store.write_many([ObjectWrite(key, [b"x"]) for key in keys])
    listing = store.list_keys()

    first = next(listing)
    store.delete_many(keys)

    assert {first.key} | {info.key for info in listing} <= set(keys)


def test_stat_and_listing_say_when_an_object_was_last_used(open_store: OpenStore, file_of: FileOf) -> None:
    store = open_store(capacity_nbytes=1 << 20)
    store.write("k", [b"x"])
    os.utime(file_of("k"), (1000, 1000))
    before = store.stat("k")

    store.read_into("k", 0, [bytearray(1)])

    after = store.stat("k")
    assert before is not None
    assert before.modified_s == 1000
    assert after is not None
    assert after.modified_s is not None
    assert after.modified_s > 1_000_000_000
    assert list(store.list_keys()) == [after]


@pytest.mark.parametrize(("fsync", "expected"), [("none", []), ("data", ["fdatasync"]), ("full", ["fsync", "fsync"])])
def test_a_write_waits_for_the_device_as_far_as_it_is_told(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, fsync: str, expected: list[str]
) -> None:
    store = open_store(fsync=fsync)
    store.write("key", [b"x"])
    calls: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd, name=name: calls.append(name))

    assert store.write("key", [b"xy"]) is WriteResult.STORED

    assert calls == expected


def test_new_folders_are_on_the_device_before_an_object_in_them(
    open_store: OpenStore, file_of: FileOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(fsync="full")
    synced: list[Path] = []
    real = os.fsync

    def note(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        real(fd)

    monkeypatch.setattr(os, "fsync", note)

    store.write("key", [b"x"])

    leaf = file_of("key").parent
    assert [path for path in synced if path.is_dir()] == [leaf.parent.parent, leaf.parent, leaf]


def test_a_folder_emptied_by_hand_is_an_empty_store(store: FileStore, root: Path) -> None:
    store.write("k", [b"x"])
    for path in sorted(root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()

    assert store.read_into("k", 0, [bytearray(1)]) is False
    assert list(store.list_keys()) == []
    assert store.write("k", [b"x"]) is WriteResult.STORED


def test_a_pipe_in_an_objects_place_blocks_nobody(store: FileStore, file_of: FileOf) -> None:
    file_of("k").parent.mkdir(parents=True)
    os.mkfifo(file_of("k"))

    assert store.write("k", [b"x"]) is WriteResult.STORED


def descriptors_below(root: Path) -> list[Path]:
    """Return what the process has open below *root*; elsewhere others of its threads open and close what they like."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(entry.readlink())
    return [path for path in found if path.is_relative_to(root)]


def test_closing_leaves_no_descriptor(root: Path, open_store: OpenStore) -> None:
    for options in ({}, {"capacity_nbytes": 1 << 20}, {"direct": False}):
        with open_store(**options) as store:
            store.write_many([ObjectWrite(f"k{i}", [b"x"]) for i in range(9)])
            store.read_many([RangeRead(f"k{i}", 0, [bytearray(1)]) for i in range(9)])
            assert descriptors_below(root)

    assert descriptors_below(root) == []


def test_a_closed_store_answers_nothing_and_closes_again(store: FileStore) -> None:
    store.close()
    store.close()

    for call in (store.stat, store.delete, store.quarantine, store.list_keys):
        with pytest.raises(StoreUnavailable):
            call("k")
    with pytest.raises(StoreUnavailable):
        store.write("k", [b"x"])
    with pytest.raises(StoreUnavailable):
        store.read_into("k", 0, [bytearray(1)])
    assert isinstance(store.exists_many(["k"])[0].error, StoreUnavailable)
