"""The store's folder on disk: what lies where, and who has it open.

====================  ==============================================================================
``objects/xx/yy/``    the objects (`names`)
``tmp/``              objects being written (`temps`)
``quarantine/``       damaged objects, kept for a post-mortem
``.lock``             held shared by every open instance; alone = nobody else has the folder open
``.ledger``           the books (`ledger`)
====================  ==============================================================================
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from hicache_storage.errors import ConfigError


class Folder:
    """The paths of one store, as strings: they are built once and used on every call."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.objects = f"{root}/objects/"
        self.tmp = f"{root}/tmp/"  # noqa: S108 - below the root, not the system's
        self.quarantine = f"{root}/quarantine/"
        self.ledger = f"{root}/.ledger"
        self.lock = f"{root}/.lock"

    @classmethod
    def prepare(cls, path: Path) -> Folder:
        """Return the folder at *path*, which exists now and can be written to.

        Raises:
            ConfigError: it cannot be a store's folder; the message says what would be right.
        """
        if path.parts[:1] and path.parts[0].startswith("~"):
            reason = f"file option path = {str(path)!r}: expand ~ before opening a store, or give an absolute path"
            raise ConfigError(reason)
        folder = cls(str(path.absolute()).rstrip("/"))
        try:
            for part in (folder.objects, folder.tmp):
                Path(part).mkdir(parents=True, exist_ok=True)
            if not os.access(folder.tmp, os.R_OK | os.W_OK | os.X_OK):
                reason = f"file option path = {folder.root!r}: this process may not write there"
                raise ConfigError(reason)
        except OSError as error:
            reason = (
                f"file option path = {folder.root!r}: {error.strerror}; "
                "expected a folder, or a place for one, that this process may write to"
            )
            raise ConfigError(reason) from error
        return folder


class Membership:
    """This instance's share in the folder, from construction until `close`, also if the process is killed.

    Attributes:
        alone: nobody else had the folder open. Until `settle` nobody else gets in.
    """

    def __init__(self, folder: Folder) -> None:
        self._fd = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.alone = True
        except BlockingIOError:
            fcntl.flock(self._fd, fcntl.LOCK_SH)
            self.alone = False
        except OSError as error:
            os.close(self._fd)
            reason = f"file option path = {folder.root!r}: its filesystem does not lock files ({error.strerror})"
            raise ConfigError(reason) from error

    def settle(self) -> None:
        """Others may enter."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def close(self) -> None:
        """This instance has left the folder."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def unlink_file(path: str) -> bool:
    """There is no file at *path*; the result says whether there was one. A folder is left alone."""
    try:
        os.unlink(path)  # noqa: PTH108 - hot path, a Path costs as much as the call
    except (FileNotFoundError, IsADirectoryError):
        return False
    return True


def remove_any(path: str) -> None:
    """Nothing is at *path* any more, whatever was there."""
    if Path(path).is_dir() and not Path(path).is_symlink():
        shutil.rmtree(path)
    else:
        Path(path).unlink(missing_ok=True)


def sync_folder(path: str) -> None:
    """The entries of the folder at *path* are on the device."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_durably(folder: Path) -> None:
    """The folder exists, and its entry and those of its parents are on the device as far as this call made them."""
    if not folder.is_dir():
        make_durably(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(str(folder.parent))
