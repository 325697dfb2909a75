"""A wrong option is refused when the store is opened, by a message that names it and what would be right."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_storage.backends.file import FileOptions, FileStore
from hicache_storage.errors import ConfigError, StoreUnavailable

OpenStore = Callable[..., FileStore]


def test_a_missing_folder_is_made(open_store: OpenStore, root: Path) -> None:
    open_store(path=root / "a" / "b")

    assert (root / "a" / "b" / "objects").is_dir()


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("below", [".", "deeper", "deeper/still"])
def test_a_file_in_the_folders_place_is_named_for_what_it_is(
    open_store: OpenStore, tmp_path: Path, below: str, create: bool
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")

    with pytest.raises(StoreUnavailable, match=f"path = '{file / below}'.*{file} is a regular file.*expected a folder"):
        open_store(path=file / below, create=create)

    assert file.read_text() == "mine"


@pytest.mark.parametrize("create", [True, False])
def test_a_link_that_leads_nowhere_is_named_for_what_it_is(open_store: OpenStore, tmp_path: Path, create: bool) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")

    with pytest.raises(StoreUnavailable, match=f"path = '{link}'.*symbolic link that leads nowhere"):
        open_store(path=link, create=create)

    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_folder_that_may_not_be_written_is_refused(
    open_store: OpenStore, root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(path: str, *_: object) -> None:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, "mkdir", refuse)

    with pytest.raises(ConfigError, match=f"path = '{root}'.*may write to"):
        open_store()


def test_a_folder_of_somebody_else_is_refused(
    open_store: OpenStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)

    with pytest.raises(ConfigError, match=f"path = '{root}'.*may not write"):
        open_store()


def test_a_lock_file_that_cannot_be_opened_is_refused(
    open_store: OpenStore, root: Path, fail_open: Callable[[Path, int], None]
) -> None:
    fail_open(root / ".lock", errno.EACCES)

    with pytest.raises(ConfigError, match=f"path = '{root}'"):
        open_store()


def test_a_tilde_is_not_taken_for_a_name(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=r"'~/cache'.*expand"):
        open_store(path=Path("~/cache"))

    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_means_the_folder_of_the_moment_of_opening(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store(path=Path("cache"))
    monkeypatch.chdir("/")

    store.write("k", [b"x"])

    assert (tmp_path / "cache" / "objects").is_dir()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("io_threads", 0),
        ("io_threads", 257),
        ("io_threads", True),
        ("eviction_ratio", 0),
        ("eviction_ratio", 1.1),
        ("eviction_ratio", "half"),
        ("eviction_ratio", float("nan")),
        ("quarantine_count", -1),
        ("orphan_age_s", -1),
        ("orphan_age_s", float("nan")),
        ("orphan_age_s", None),
        ("capacity_nbytes", "ten"),
        ("capacity_nbytes", -1),
        ("fsync", "always"),
    ],
)
def test_a_value_that_does_not_fit_is_named(root: Path, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"file option {name} = {value!r}"):
        FileOptions(**{"path": root, name: value})  # type: ignore[arg-type]


def test_values_may_be_written_as_people_write_them(root: Path) -> None:
    options = FileOptions(path=root, capacity_nbytes="10GiB", io_threads="8", eviction_ratio="0.5")  # type: ignore[arg-type]

    assert (options.capacity_nbytes, options.io_threads, options.eviction_ratio) == (10 << 30, 8, 0.5)
