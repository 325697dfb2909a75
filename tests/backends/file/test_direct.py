"""Transfers around the page cache: any size, any alignment, exact bytes, nothing outside the targets."""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from hicache_storage.backends.file import FileStore
from hicache_storage.errors import ConfigError, CorruptObject
from hicache_storage.types import RangeRead, WriteResult

MIB = 1 << 20
SIZES = [0, 1, 511, 512, 4095, 4096, 4097, 8192, 256 * 1024 + 5, MIB - 1, MIB, MIB + 1, 2 * MIB + 4096, 3 * MIB + 17]

OpenStore = Callable[..., FileStore]
FileOf = Callable[[str], Path]


@pytest.fixture
def store(open_store: OpenStore) -> FileStore:
    return open_store(direct=True)


@pytest.fixture
def arena() -> Iterator[memoryview]:
    """Page-aligned memory, as an engine's host pool is."""
    memory = mmap.mmap(-1, 4 * MIB)
    view = memoryview(memory)
    yield view
    view.release()
    memory.close()


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("shift", [0, 1, 512])
def test_any_size_and_alignment_is_written_and_read_exactly(
    store: FileStore, file_of: FileOf, arena: memoryview, nbytes: int, shift: int
) -> None:
    body = random.Random(nbytes).randbytes(nbytes)
    arena[shift : shift + nbytes] = body

    assert store.write("key", [arena[shift : shift + nbytes]]) is WriteResult.STORED
    assert file_of("key").read_bytes() == body
    arena[:] = b"\xa5" * len(arena)
    assert store.read_into("key", 0, [arena[shift : shift + nbytes]], object_nbytes=nbytes)

    assert arena[shift : shift + nbytes] == body
    assert bytes(arena[:shift]) == b"\xa5" * shift
    assert bytes(arena[shift + nbytes :]) == b"\xa5" * (len(arena) - shift - nbytes)


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_into_parts_and_ranges_is_exact(
    store: FileStore, file_of: FileOf, arena: memoryview, seed: int
) -> None:
    rng = random.Random(seed)
    body = rng.randbytes(rng.choice([3 * MIB, 300_000, 70_001]))
    cuts = sorted({0, len(body), *(rng.choice([4096 * rng.randrange(80), rng.randrange(len(body))]) for _ in range(6))})
    parts = [bytearray(body[a:b]) if rng.random() < 0.5 else body[a:b] for a, b in pairwise(cuts)]

    store.write("key", parts)

    assert file_of("key").read_bytes() == body
    for _ in range(10):
        offset = rng.choice([4096 * rng.randrange(len(body) // 4096), rng.randrange(len(body))])
        first, second = (min(rng.randrange(1, 20_000), (len(body) - offset) // 2) for _ in range(2))
        start = rng.choice([0, 4096, 17])
        targets: list[bytearray | memoryview] = [arena[start : start + first], bytearray(second)]
        seen: list[int] = []
        assert store.read_many([RangeRead("key", offset, targets, on_filled=seen.append)])[0]
        assert b"".join(targets) == body[offset : offset + first + second]
        assert seen == sorted(seen)
        assert seen[-1] == first + second


@pytest.mark.parametrize("damage_nbytes", [0, 4096, 4999, 5001])
def test_an_object_of_another_size_is_corrupt(store: FileStore, file_of: FileOf, damage_nbytes: int) -> None:
    store.write("key", [bytes(5000)])
    os.truncate(file_of("key"), damage_nbytes)

    with pytest.raises(CorruptObject):
        store.read_into("key", 0, [bytearray(5000)], object_nbytes=5000)


def test_a_folder_in_an_objects_place_is_corrupt_and_replaced(store: FileStore, file_of: FileOf) -> None:
    file_of("key").mkdir(parents=True)

    with pytest.raises(CorruptObject):
        store.read_into("key", 0, [bytearray(1)])
    assert store.write("key", [b"x"]) is WriteResult.STORED


def test_a_filesystem_that_refuses_is_named_at_construction(
    open_store: OpenStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)

    with pytest.raises(ConfigError, match=f"direct.*'{root}'.*refuses"):
        open_store(direct=True)


def test_the_probe_leaves_nothing(store: FileStore, root: Path) -> None:
    assert sorted(path.name for path in root.iterdir()) == [".door", ".ledger", ".lock", "objects", "tmp"]
