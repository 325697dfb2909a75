"""The store's folder on disk: what lies where, and who has it open.

====================  ==============================================================================
``objects/xx/yy/``    the objects (`names`)
``tmp/``              objects being written (`temps`)
``quarantine/``       damaged objects, kept for a post-mortem
``.lock``             held shared by every open instance; alone = nobody else has the folder open
``.door``             held by the one instance that is being opened
``.ledger``           the books (`ledger`)
====================  ==============================================================================
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from hicache_storage.backends.file.errors import BACKEND, store_error
from hicache_storage.errors import AccessDenied, ConfigError, StoreUnavailable

_KINDS = {
    stat.S_IFREG: "a regular file",
    stat.S_IFLNK: "a symbolic link that leads nowhere",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


class Folder:
    """The paths of one store, as strings: they are built once and used on every call."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.objects = f"{root}/objects/"
        self.tmp = f"{root}/tmp/"  # noqa: S108 - below the root, not the system's
        self.quarantine = f"{root}/quarantine/"
        self.ledger = f"{root}/.ledger"
        self.lock = f"{root}/.lock"
        self.door = f"{root}/.door"

    @classmethod
    def at(cls, path: Path) -> Folder:
        """Return the paths of the store at *path*, whether anything is there or not.

        Raises:
            ConfigError: the path begins with ``~``.
        """
        if path.parts[:1] and path.parts[0].startswith("~"):
            reason = f"file option path = {str(path)!r}: expand ~ before opening a store, or give an absolute path"
            raise ConfigError(reason)
        return cls(str(path.absolute()).rstrip("/"))

    @classmethod
    def prepare(cls, path: Path) -> Folder:
        """Return the folder at *path*, which exists now and can be written to.

        Raises:
            ConfigError: it cannot be a store's folder; the message says what would be right.
            StoreUnavailable: something that is no folder is in its place.
        """
        folder = cls.at(path)
        try:
            for part in (folder.objects, folder.tmp):
                Path(part).mkdir(parents=True, exist_ok=True)
            if not os.access(folder.tmp, os.R_OK | os.W_OK | os.X_OK):
                reason = f"file option path = {folder.root!r}: this process may not write there"
                raise ConfigError(reason)
        except (FileExistsError, NotADirectoryError) as error:
            raise _unavailable(folder) from error
        except OSError as error:
            reason = (
                f"file option path = {folder.root!r}: {error.strerror}; "
                "expected a folder, or a place for one, that this process may write to"
            )
            raise ConfigError(reason) from error
        return folder

    @classmethod
    def look(cls, path: Path) -> Folder:
        """Return the folder at *path*, which is there and can be read; nothing is made.

        Raises:
            ConfigError: as `at`.
            StoreUnavailable: there is no such folder.
            AccessDenied: this process may not read it.
        """
        folder = cls.at(path)
        try:
            if not stat.S_ISDIR(Path(folder.root).stat().st_mode):
                raise _unavailable(folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _unavailable(folder) from error
        except OSError as error:
            raise store_error(error, op="open") from error
        if not os.access(folder.root, os.R_OK | os.X_OK):
            reason = f"file option path = {folder.root!r}: this process may not read there"
            raise AccessDenied(reason, backend=BACKEND, op="open")
        return folder


class Membership:
    """This instance's share in the folder, from construction until `close`, also if the process is killed.

    A lock is never turned from exclusive to shared in one step: others may get it in between. So whoever
    asks whether it is alone holds a second lock, the door, while it does.

    Attributes:
        alone: nobody else had the folder open. Until `settle` nobody else gets in.
    """

    def __init__(self, folder: Folder) -> None:
        self._fd = self._door = -1
        self.alone = False
        try:
            self._door = _open_lock(folder.door)
            self._fd = _open_lock(folder.lock)
            _flock(self._door, fcntl.LOCK_EX, folder)
            with suppress(BlockingIOError):
                _flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, folder)
                self.alone = True
            _flock(self._fd, fcntl.LOCK_SH, folder)
            if not self.alone:
                self.settle()
        except BaseException:
            self.close()
            raise

    def settle(self) -> None:
        """Others may enter."""
        door, self._door = self._door, -1
        if door >= 0:
            # Closing would not open it while a child forked meanwhile holds a copy of the descriptor.
            fcntl.flock(door, fcntl.LOCK_UN)
            os.close(door)

    def close(self) -> None:
        """This instance has left the folder."""
        self.settle()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _unavailable(folder: Folder) -> StoreUnavailable:
    """Return the error that says what is in the folder's place, or that nothing is."""
    parts = [Path(part) for part in (folder.objects, folder.tmp)]
    found = "there is no such folder"
    for place in [*reversed(parts[0].parents), *parts]:
        if os.path.lexists(place) and not place.is_dir():
            kind = _KINDS.get(stat.S_IFMT(place.lstat().st_mode), "no folder")
            found = f"{place} is {kind}, expected a folder"
            break
    return StoreUnavailable(f"file option path = {folder.root!r}: {found}", backend=BACKEND, op="open")


def _open_lock(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _flock(fd: int, operation: int, folder: Folder) -> None:
    try:
        fcntl.flock(fd, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        reason = f"file option path = {folder.root!r}: its filesystem does not lock files ({error.strerror})"
        raise ConfigError(reason) from error


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
