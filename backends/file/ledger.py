"""The folder's books: how many bytes its files are charged with, one number for all instances and processes.

Every change of the books, and every change of the files that they count, happens while the ledger file is
locked (``flock``, on a descriptor of its own each time, so threads and forked children exclude each other too).
Between two such sections the number is exactly the sum of what lies in the folder.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHARGE_STEP_NBYTES = 4096

_DIGITS = 20

_COUNTING = b"counting\n"


def charge_of(nbytes: int) -> int:
    """Return what a file of *nbytes* is charged: its size in whole blocks."""
    return -(-nbytes // CHARGE_STEP_NBYTES) * CHARGE_STEP_NBYTES


def charge_at(path: str) -> int:
    """Return what the regular file at *path* is charged; 0 if there is none."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return 0
    return charge_of(status.st_size) if stat.S_ISREG(status.st_mode) else 0


class Account:
    """The books while they are locked; every change is written at once.

    Whoever is about to take room adds it first, and whoever gave room up takes it off afterwards: a process
    that is killed in between leaves the number too high, never too low, until the next scan corrects it.
    Nobody's file is empty; a number that cannot be read is one that is still being counted.

    Attributes:
        used_nbytes: what the folder's files are charged; means nothing unless the books are kept.
        kept: whether anybody keeps the books and the number is there.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        text = os.pread(fd, _DIGITS + 1, 0)
        self.kept = len(text) == _DIGITS + 1 and text[:_DIGITS].isdigit()
        self.used_nbytes = int(text) if self.kept else 0

    def add(self, nbytes: int) -> None:
        """The books say *nbytes* more, or less if it is negative."""
        if nbytes and self.kept:
            self.open_with(self.used_nbytes + nbytes)

    def open_with(self, used_nbytes: int) -> None:
        """The books are kept and say *used_nbytes*."""
        self.kept = True
        self.used_nbytes = max(0, used_nbytes)
        os.pwrite(self._fd, b"%0*d\n" % (_DIGITS, self.used_nbytes), 0)

    def count(self, count: Callable[[], int]) -> None:
        """The books are kept and say what *count* returned.

        They are seen to be kept (`Ledger.is_kept`) before the count begins: whoever changes the folder and then
        sees that nobody keeps the books has changed it before the count.
        """
        if not self.kept:
            os.pwrite(self._fd, _COUNTING, 0)
        self.open_with(count())

    def abandon(self) -> None:
        """Nobody keeps the books."""
        self.kept = False
        os.ftruncate(self._fd, 0)


class Ledger:
    """The lock and the number behind `Account`. Holds nothing open between two uses."""

    def __init__(self, path: str) -> None:
        self._path = path

    def is_kept(self) -> bool:
        """Return whether anybody keeps the books, without waiting for whoever has them locked. Cost: one stat.

        Other machines may see it as late as a network filesystem tells them.
        """
        try:
            return os.stat(self._path).st_size > 0  # noqa: PTH116 - hot path, a Path costs as much as the call
        except FileNotFoundError:
            return False

    @contextmanager
    def locked(self) -> Iterator[Account]:
        """The books are this caller's alone until the block ends."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                yield Account(fd)
            finally:
                # Closing would not unlock while a child forked meanwhile holds a copy of the descriptor.
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)
