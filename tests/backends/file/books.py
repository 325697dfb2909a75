"""Back doors to a folder's books: what its files take, what they should be charged, what the ledger says."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_storage.backends.file import FileStore

PAGE = bytes(16 * 1024)


def used_nbytes(root: Path) -> int:
    """Return the blocks that all files of the folder take, the lock files left out; each file once."""
    taken: dict[int, int] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            status = (Path(folder) / name).lstat()
            taken[status.st_ino] = 0 if name in (".lock", ".ledger") else 512 * status.st_blocks
    return sum(taken.values())


def frozen_used_nbytes(root: Path) -> int:
    """Return `used_nbytes` of one moment: nobody changes what the folder takes while the ledger is locked."""
    with (root / ".ledger").open() as ledger:
        fcntl.flock(ledger, fcntl.LOCK_EX)
        return used_nbytes(root)


def booked_nbytes(root: Path) -> int:
    return int((root / ".ledger").read_text())


def charged_nbytes(root: Path) -> int:
    """Return what the files should be charged, counted by hand."""
    files = [path for part in ("objects", "tmp", "quarantine") for path in (root / part).rglob("*") if path.is_file()]
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in files)


def there(store: FileStore, keys: list[str]) -> list[str]:
    return [key for key, outcome in zip(keys, store.exists_many(keys), strict=True) if outcome]


def forbid_unlink(monkeypatch: pytest.MonkeyPatch, forbidden: Callable[[str], bool]) -> None:
    real = os.unlink

    def unlink(path: str | Path, **rest: int) -> None:
        if forbidden(str(path)):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        real(path, **rest)

    monkeypatch.setattr(os, "unlink", unlink)
