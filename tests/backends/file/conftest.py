"""Stores on real files, and back doors to those files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hicache_storage.backends.file import FileOptions, FileStore, drafts
from hicache_storage.backends.file.folder import Folder
from hicache_storage.backends.file.names import object_path

OpenStore = Callable[..., FileStore]
OpenFiles = Callable[[], list[str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def open_store(root: Path) -> Iterator[OpenStore]:
    opened: list[FileStore] = []

    def open_one(**options: object) -> FileStore:
        opened.append(FileStore(FileOptions(**{"path": root, "io_threads": 4} | options)))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> FileStore:
    return open_store()


@pytest.fixture
def file_of(root: Path) -> Callable[[str], Path]:
    def path(key: str) -> Path:
        return root / "objects" / object_path(key)

    return path


@pytest.fixture
def temps(root: Path) -> OpenFiles:
    return lambda: sorted(path.name for path in (root / "tmp").iterdir())


@pytest.fixture
def unnamed_drafts(root: Path) -> None:
    """A filesystem that has files without a name, as ext4, XFS, Btrfs and tmpfs do."""
    if not drafts.can_be_unnamed(Folder.prepare(root)):
        pytest.skip("the filesystem of the test folder has no O_TMPFILE")


@pytest.fixture(params=["unnamed", "named"])
def draft_kind(request: pytest.FixtureRequest) -> str:
    """Both ways of writing: with O_TMPFILE and a link, and with a temporary name and a rename."""
    request.getfixturevalue(f"{request.param}_drafts")
    return str(request.param)


@pytest.fixture
def named_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem that has no files without a name, such as NFS."""
    monkeypatch.setattr(drafts, "can_be_unnamed", lambda _: False)


@pytest.fixture
def fail_open(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """Make opening one path fail; permissions would not stop a test that runs as root."""

    def fail(path: Path, code: int) -> None:
        real = os.open

        def failing(name: str, *arguments: int) -> int:
            if str(name) == str(path):
                raise OSError(code, os.strerror(code), name)
            return real(name, *arguments)

        monkeypatch.setattr(os, "open", failing)

    return fail
