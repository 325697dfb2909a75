"""A short, long or unreadable object is never a hit, never an exception, and heals with the next write."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_storage.backends.file import FileStore
from hicache_storage.errors import (
    AccessDenied,
    CorruptObject,
    RangeError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    Unsupported,
)
from hicache_storage.types import ObjectWrite, RangeRead, Status, WriteResult

BODY = bytes(range(256)) * 40
DAMAGED_SIZES = [0, len(BODY) // 2, len(BODY) - 1, len(BODY) + 1]

FileOf = Callable[[str], Path]


def read_six(store: FileStore) -> list[type[StoreError] | Status]:
    reads = [RangeRead(f"page-{i}", 0, [bytearray(len(BODY))], object_nbytes=len(BODY)) for i in range(6)]
    return [outcome.status if outcome.error is None else type(outcome.error) for outcome in store.read_many(reads)]


def write_six(store: FileStore) -> None:
    assert all(store.write_many([ObjectWrite(f"page-{i}", [BODY]) for i in range(6)]))


def plant_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        # A socket's address is short, and the path need not be: it goes through the folder's descriptor.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)


@pytest.mark.parametrize("nbytes", DAMAGED_SIZES)
def test_an_object_of_the_wrong_size_is_corrupt_and_healed_by_the_next_write(
    store: FileStore, file_of: FileOf, nbytes: int
) -> None:
    write_six(store)
    file_of("page-3").write_bytes((BODY + b"x")[:nbytes])

    assert read_six(store) == [Status.HIT] * 3 + [CorruptObject] + [Status.HIT] * 2
    assert store.write("page-3", [BODY]) is WriteResult.STORED
    assert read_six(store) == [Status.HIT] * 6


def test_a_folder_in_an_objects_place_is_corrupt_and_healed_by_the_next_write(
    store: FileStore, file_of: FileOf
) -> None:
    write_six(store)
    file_of("page-3").unlink()
    (file_of("page-3") / "inside").mkdir(parents=True)

    assert store.stat("page-3") is None
    assert [bool(outcome) for outcome in store.exists_many(["page-2", "page-3"])] == [True, False]
    assert read_six(store) == [Status.HIT] * 3 + [CorruptObject] + [Status.HIT] * 2
    assert store.write("page-3", [BODY]) is WriteResult.STORED
    assert read_six(store) == [Status.HIT] * 6


@pytest.mark.parametrize("plant", [os.mkfifo, plant_socket], ids=["pipe", "socket"])
def test_a_pipe_or_a_socket_in_an_objects_place_makes_no_reader_wait(
    store: FileStore, file_of: FileOf, plant: Callable[[Path], None]
) -> None:
    write_six(store)
    file_of("page-3").unlink()
    plant(file_of("page-3"))

    assert read_six(store) == [Status.HIT] * 3 + [CorruptObject] + [Status.HIT] * 2
    with pytest.raises(CorruptObject):
        store.read_into("page-3", 0, [])
    assert store.quarantine("page-3") is True
    assert store.write("page-3", [BODY]) is WriteResult.STORED
    assert read_six(store) == [Status.HIT] * 6


def test_a_folder_in_an_objects_place_is_quarantined_like_any_other_damage(store: FileStore, file_of: FileOf) -> None:
    (file_of("page-3") / "inside").mkdir(parents=True)

    assert store.quarantine("page-3") is True
    assert not file_of("page-3").exists()


def test_an_unreadable_sector_is_corrupt_and_healed_by_the_next_write(
    store: FileStore, file_of: FileOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_six(store)
    broken = file_of("page-3").stat().st_ino
    preadv = os.preadv

    def failing(fd: int, *arguments: object) -> int:
        if os.fstat(fd).st_ino == broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(fd, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "preadv", failing)

    assert read_six(store) == [Status.HIT] * 3 + [CorruptObject] + [Status.HIT] * 2
    assert store.write("page-3", [BODY]) is WriteResult.STORED
    assert store.write("page-3", [BODY]) is WriteResult.ALREADY_THERE
    assert read_six(store) == [Status.HIT] * 6


@pytest.mark.parametrize(
    ("code", "meaning"), [(errno.EACCES, AccessDenied), (errno.EIO, CorruptObject), (errno.EMFILE, StoreUnavailable)]
)
def test_an_object_that_cannot_be_opened_fails_alone(
    store: FileStore, file_of: FileOf, fail_open: Callable[[Path, int], None], code: int, meaning: type[StoreError]
) -> None:
    write_six(store)
    fail_open(file_of("page-3"), code)

    assert read_six(store) == [Status.HIT] * 3 + [meaning] + [Status.HIT] * 2


def test_an_object_that_may_not_be_read_is_replaced_by_the_next_write(
    store: FileStore, file_of: FileOf, fail_open: Callable[[Path, int], None]
) -> None:
    write_six(store)
    before = file_of("page-3").stat().st_ino
    fail_open(file_of("page-3"), errno.EACCES)

    assert store.write("page-3", [BODY]) is WriteResult.STORED
    assert file_of("page-3").stat().st_ino != before


def test_a_failing_item_of_a_batch_fails_alone(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev = os.pwritev

    def failing(fd: int, parts: list[bytes], offset: int) -> int:
        if parts[0] == b"third":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pwritev(fd, parts, offset)

    monkeypatch.setattr(os, "pwritev", failing)
    bodies = [b"first", b"second", b"third", b"fourth", b"fifth"]

    outcomes = store.write_many([ObjectWrite(body.decode(), [body]) for body in bodies])

    assert [outcome.status for outcome in outcomes] == [
        Status.STORED, Status.STORED, Status.FAILED, Status.STORED, Status.STORED
    ]  # fmt: skip
    assert isinstance(outcomes[2].error, StoreUnavailable)
    assert [store.stat(body.decode()) is not None for body in bodies] == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (errno.EIO, StoreUnavailable),
        (errno.EACCES, AccessDenied),
        (errno.EROFS, AccessDenied),
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EFBIG, Unsupported),
        (errno.ESTALE, StoreUnavailable),
    ],
)
def test_a_write_error_says_what_it_means_and_leaves_no_temp(
    draft_kind: str,
    store: FileStore,
    temps: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    meaning: type[StoreError],
) -> None:
    def failing(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwritev", failing)

    with pytest.raises(meaning) as caught:
        store.write("key", [BODY])

    assert type(caught.value) is meaning
    assert (caught.value.backend, caught.value.op, caught.value.key) == ("file", "write", "key")
    assert errno.errorcode[code] in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert temps() == []
    assert store.stat("key") is None


@pytest.mark.parametrize("call", ["close", "replace"])
def test_a_named_draft_that_fails_late_leaves_nothing(
    named_drafts: None,
    store: FileStore,
    temps: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    real = getattr(os, call)

    def failing(*arguments: int) -> None:
        if call == "close":
            real(*arguments)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing)
        with pytest.raises(StoreUnavailable):
            store.write("key", [BODY])

    assert temps() == []
    assert store.stat("key") is None
    assert store.write("key", [BODY]) is WriteResult.STORED


@pytest.mark.parametrize("call", ["link", "replace"])
def test_an_unnamed_draft_that_cannot_be_published_leaves_nothing(
    unnamed_drafts: None,
    store: FileStore,
    file_of: FileOf,
    temps: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    store.write("key", [b"damaged"])

    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing)
        with pytest.raises(StoreUnavailable):
            store.write("key", [BODY])

    assert temps() == []
    assert file_of("key").read_bytes() == b"damaged"
    assert store.write("key", [BODY]) is WriteResult.STORED
    assert file_of("key").read_bytes() == BODY


def test_short_transfers_are_continued(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev, preadv = os.pwritev, os.preadv

    def some(buffers: list[memoryview]) -> list[memoryview]:
        return [memoryview(buffer)[:7] for buffer in buffers if len(buffer)][:1]

    monkeypatch.setattr(os, "pwritev", lambda fd, parts, offset: pwritev(fd, some(parts), offset))
    monkeypatch.setattr(os, "preadv", lambda fd, targets, offset: preadv(fd, some(targets), offset))
    target = bytearray(100)
    seen: list[int] = []

    store.write("key", [BODY[:10], b"", BODY[10:100]])
    [outcome] = store.read_many([RangeRead("key", 0, [target], 100, seen.append)])

    assert outcome
    assert target == BODY[:100]
    assert seen == sorted(set(seen))
    assert seen[-1] == 100


def test_an_object_that_shrinks_while_it_is_read_is_not_a_hit(
    store: FileStore, file_of: FileOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("key", [BODY])
    preadv = os.preadv

    def shrinking(fd: int, targets: list[bytearray], offset: int) -> int:
        os.truncate(file_of("key"), 100)
        return preadv(fd, targets, offset)

    monkeypatch.setattr(os, "preadv", shrinking)

    with pytest.raises(RangeError):
        store.read_into("key", 0, [bytearray(200)])
    with pytest.raises(CorruptObject):
        store.read_into("key", 0, [bytearray(len(BODY))], object_nbytes=len(BODY))


def test_quarantined_bytes_are_kept_aside_up_to_a_number(
    open_store: Callable[..., FileStore], root: Path, file_of: FileOf
) -> None:
    store = open_store(quarantine_count=2)

    for body in (b"oldest", b"older", b"newest"):
        store.write("bad", [body])
        assert store.quarantine("bad") is True

    assert [path.read_bytes() for path in sorted((root / "quarantine").iterdir())] == [b"older", b"newest"]
    assert all(path.name.endswith(".bad") for path in (root / "quarantine").iterdir())
    assert not file_of("bad").exists()


def test_a_quarantine_of_none_keeps_nothing(open_store: Callable[..., FileStore], root: Path) -> None:
    store = open_store(quarantine_count=0)
    store.write("bad" * 1000, [b"x"])

    assert store.quarantine("bad" * 1000) is True

    assert [path for path in root.rglob("*") if path.is_file() and path.parent != root] == []
