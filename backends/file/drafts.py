"""Objects on their way to their place: open for writing, and seen by nobody until they are whole.

Where the filesystem can (O_TMPFILE), a draft has no name until a link publishes it. It is made in the folder in
which it stays, so writers do not meet in a shared one, and the kernel removes it when its writer dies. Elsewhere,
where the books must see it, and where it replaces a damaged object, a draft has a name in ``tmp/`` that no other
one gets (`temps`), and a rename publishes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hicache_storage.backends.file.folder import Folder, remove_any, unlink_file
from hicache_storage.backends.file.temps import TempNames

T = TypeVar("T")


@dataclass(slots=True)
class Draft:
    """One object being written.

    Attributes:
        fd: open for writing; -1 once it is closed.
        name: path of the temporary file; None while it has no name, and once it is published.
        reserved_nbytes: what the books hold for it; 0 once it is published or discarded.
    """

    fd: int
    name: str | None
    reserved_nbytes: int = 0

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Drafts:
    """Makes, publishes and discards the drafts of one store instance.

    Args:
        always_named: every draft has a name from the start, which says how much is reserved for it.
    """

    def __init__(self, folder: Folder, *, always_named: bool) -> None:
        self._folder = folder
        self._names = TempNames()
        self._unnamed = not always_named and can_be_unnamed(folder)

    def create(self, path: str, *, reserved_nbytes: int, flags: int) -> Draft:
        """Return a new, empty draft of the object at *path*; missing folders are made."""
        flags |= os.O_WRONLY | os.O_CLOEXEC
        if self._unnamed:
            leaf = path[: path.rindex("/")]
            fd = _with_folder(leaf, lambda: os.open(leaf, flags | os.O_TMPFILE, 0o666))
            return Draft(fd, None, reserved_nbytes)
        name = self.new_name(reserved_nbytes)
        fd = _with_folder(self._folder.tmp, lambda: os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o666))
        return Draft(fd, name, reserved_nbytes)

    def publish(self, draft: Draft, path: str) -> None:
        """The draft is the object at *path*, in the place of whatever was there."""
        if draft.name is None:
            try:
                _link(draft.fd, path)
            except FileExistsError:
                name = self.new_name(draft.reserved_nbytes)
                _link(draft.fd, name)
                draft.name = name
        if draft.name is not None:
            draft.close()  # a network filesystem may report only now that it could not write
            replace(draft.name, path)
            draft.name = None

    def new_name(self, reserved_nbytes: int) -> str:
        """Return the path of a temporary file that does not exist yet."""
        return self._folder.tmp + self._names.new(reserved_nbytes)


def discard(draft: Draft) -> None:
    """The draft is closed, and gone unless it is published."""
    name, draft.name = draft.name, None
    try:
        if name is not None:
            unlink_file(name)
    finally:
        draft.close()


def replace(source: str, path: str) -> None:
    """The file *source* is at *path*, in the place of whatever was there; missing folders are made."""
    try:
        os.replace(source, path)  # noqa: PTH105 - hot path, a Path costs as much as the call
    except FileNotFoundError:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(source).replace(path)
    except IsADirectoryError:
        remove_any(path)
        Path(source).replace(path)


def can_be_unnamed(folder: Folder) -> bool:
    """Return whether the folder's filesystem has files without a name and can give them one."""
    probe = f"{folder.tmp}probe.{os.getpid()}.{id(folder)}"
    try:
        fd = os.open(folder.tmp, os.O_WRONLY | os.O_CLOEXEC | os.O_TMPFILE, 0o666)
    except OSError:
        return False
    try:
        _link(fd, probe)
    except OSError:
        return False
    finally:
        os.close(fd)
        unlink_file(probe)
    return True


def _link(fd: int, path: str) -> None:
    # The descriptor makes Python call linkat, which alone can follow the symbolic link; the path is absolute.
    source = f"/proc/self/fd/{fd}"
    _with_folder(path[: path.rindex("/")], lambda: os.link(source, path, src_dir_fd=fd, follow_symlinks=True))


def _with_folder(folder: str, call: Callable[[], T]) -> T:
    """Return what *call* returns, which needs *folder*; it is made if it is missing."""
    with suppress(FileNotFoundError):
        return call()
    Path(folder).mkdir(parents=True, exist_ok=True)
    return call()
