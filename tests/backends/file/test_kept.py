"""Objects whose keys begin with a kept prefix are not evicted; they count like all others."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_storage.backends.file import FileOptions, FileStore
from hicache_storage.errors import ConfigError, StoreFull
from hicache_storage.types import ObjectWrite, Status, WriteResult
from tests.backends.file.books import PAGE, booked_nbytes, charged_nbytes, there

OpenStore = Callable[..., FileStore]
FileOf = Callable[[str], Path]

DESCRIPTION = "namespace_ukv1-0123456789abcdef.json"


def write_pages(store: FileStore, count: int) -> list[Status]:
    return [outcome.status for outcome in store.write_many([ObjectWrite(f"k{i}", [PAGE]) for i in range(count)])]


def test_a_namespaces_description_outlives_the_pages(root: Path, open_store: OpenStore) -> None:
    store = open_store(capacity_nbytes=4 * len(PAGE))
    store.write(DESCRIPTION, [b"{}"])

    assert set(write_pages(store, 40)) == {Status.STORED}

    assert there(store, [DESCRIPTION]) == [DESCRIPTION]
    assert booked_nbytes(root) == charged_nbytes(root) <= 4 * len(PAGE)


def test_what_is_kept_stays_when_a_store_is_opened_with_less_room(open_store: OpenStore) -> None:
    with open_store(capacity_nbytes=1 << 30) as store:
        store.write(DESCRIPTION, [b"{}"])
        write_pages(store, 40)

    store = open_store(capacity_nbytes=4096)

    assert [info.key for info in store.list_keys()] == [DESCRIPTION]


@pytest.mark.parametrize("key", ["keep me / \u4f60", "keep me / " + "long" * 100], ids=["escaped", "hashed"])
def test_a_prefix_is_one_of_the_key_and_not_of_the_file_name(open_store: OpenStore, key: str) -> None:
    store = open_store(capacity_nbytes=8 * len(PAGE), keep_prefixes="other,keep me /")
    store.write(key, [b"x"])

    assert set(write_pages(store, 40)) == {Status.STORED}

    assert there(store, [key]) == [key]


@pytest.mark.parametrize("none", [(), [], ""])
def test_without_prefixes_nothing_is_kept(open_store: OpenStore, none: object) -> None:
    store = open_store(capacity_nbytes=4 * len(PAGE), keep_prefixes=none)
    store.write(DESCRIPTION, [b"{}"])

    write_pages(store, 40)

    assert there(store, [DESCRIPTION]) == []


def test_a_store_full_of_kept_objects_is_full(root: Path, open_store: OpenStore) -> None:
    store = open_store(capacity_nbytes=4 * 4096)
    kept = [f"namespace_{i}" for i in range(4)]
    assert all(store.write_many([ObjectWrite(key, [b"{}"]) for key in kept]))

    with pytest.raises(StoreFull, match="nothing more that can be evicted"):
        store.write("page", [b"x"])
    with pytest.raises(StoreFull):
        store.write("namespace_4", [b"{}"])

    assert there(store, kept) == kept
    assert booked_nbytes(root) == charged_nbytes(root) == 4 * 4096


def test_deleting_what_is_kept_makes_room(open_store: OpenStore) -> None:
    store = open_store(capacity_nbytes=4096)
    store.write(DESCRIPTION, [b"{}"])

    assert store.delete(DESCRIPTION) is True
    assert store.write("page", [b"x"]) is WriteResult.STORED


def test_a_full_device_takes_no_kept_object_either(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    store.write(DESCRIPTION, [b"{}"])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(StoreFull):
        store.write("page", [PAGE])

    assert there(store, [DESCRIPTION]) == [DESCRIPTION]


@pytest.mark.parametrize("value", ["a,,b", [""], [1], 1, True, ["\udc80"]])
def test_a_prefix_that_would_keep_everything_or_is_none_is_refused(root: Path, value: object) -> None:
    with pytest.raises(ConfigError, match="file option keep_prefixes"):
        FileOptions(path=root, keep_prefixes=value)  # type: ignore[arg-type]
