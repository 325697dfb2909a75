"""Transfers that bypass the page cache (O_DIRECT).

The device wants file position, memory address and length in multiples of `BLOCK_NBYTES`. What is aligned in all
three goes straight to or from the caller's memory; the rest goes through an aligned buffer of the thread's own.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable, Sequence

from hicache_storage.backends.file.folder import Folder
from hicache_storage.backends.file.io import PIECE_NBYTES, flat_views
from hicache_storage.errors import ConfigError
from hicache_storage.types import ObjectWrite, WritableBuffer

BLOCK_NBYTES = 4096
"""No device in use asks for more; many would be content with 512."""

_BOUNCE_NBYTES = 1 << 20


class DirectIO:
    """`read_range` and `write_all` as in `io`, for files opened with O_DIRECT."""

    def __init__(self) -> None:
        self._local = threading.local()

    def read_range(
        self,
        fd: int,
        offset: int,
        targets: Sequence[WritableBuffer],
        nbytes: int,
        to_file_end: bool,
        on_filled: Callable[[int], None] | None,
    ) -> int:
        done = 0
        for view in flat_views(targets):
            start = done
            while done < start + len(view):
                rest = view[done - start :]
                got = self._read_some(fd, offset + done, rest)
                if got == 0:
                    return done
                done += got
                if on_filled is not None:
                    on_filled(done)
        return done + (to_file_end and os.fstat(fd).st_size > offset + nbytes)

    def write_all(self, fd: int, write: ObjectWrite) -> None:
        bounce = self._bounce()
        position = held = 0  # bytes on their way to the device, bytes in the bounce buffer behind them
        for view in flat_views(write.parts):
            taken = 0
            while taken < len(view):
                rest = view[taken:]
                if held == 0 and (straight := _aligned_nbytes(rest)):
                    got = os.pwrite(fd, rest[:straight], position)
                    position += got
                    taken += got
                    continue
                count = min(len(rest), len(bounce) - held)
                bounce[held : held + count] = rest[:count]
                held += count
                taken += count
                if held == len(bounce):
                    position, held = self._flush(fd, position, held), 0
        if held:
            self._flush(fd, position, -(-held // BLOCK_NBYTES) * BLOCK_NBYTES)
            os.ftruncate(fd, write.nbytes)

    def _read_some(self, fd: int, offset: int, target: memoryview) -> int:
        """Return how many of the bytes at *offset* are now at the start of *target*; 0 at the end of the file."""
        if offset % BLOCK_NBYTES == 0 and (straight := _aligned_nbytes(target)):
            return os.preadv(fd, [target[: min(straight, PIECE_NBYTES)]], offset)
        bounce = self._bounce()
        lead = offset % BLOCK_NBYTES
        wanted = min(-(-(lead + len(target)) // BLOCK_NBYTES) * BLOCK_NBYTES, PIECE_NBYTES)
        got = os.preadv(fd, [bounce[:wanted]], offset - lead)
        count = max(0, min(got - lead, len(target)))
        target[:count] = bounce[lead : lead + count]
        return count

    def _flush(self, fd: int, position: int, nbytes: int) -> int:
        bounce = self._bounce()
        done = 0
        while done < nbytes:
            done += os.pwrite(fd, bounce[done:nbytes], position + done)
        return position + nbytes

    def _bounce(self) -> memoryview:
        bounce: memoryview | None = getattr(self._local, "bounce", None)
        if bounce is None:
            # Private: Python's default would share the memory with forked children.
            memory = mmap.mmap(-1, _BOUNCE_NBYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            bounce = self._local.bounce = memoryview(memory)
        return bounce


def probe(folder: Folder) -> None:
    """The folder's filesystem takes direct writes and reads.

    Raises:
        ConfigError: it does not; the message names the folder.
    """
    path = f"{folder.root}/.direct-probe.{os.getpid()}.{threading.get_ident()}"
    block = bytes(BLOCK_NBYTES + 1)
    try:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DIRECT, 0o666)
            try:
                DirectIO().write_all(fd, ObjectWrite("probe", [block]))
                os.fsync(fd)
            finally:
                os.close(fd)
        finally:
            if os.path.lexists(path):
                os.unlink(path)  # noqa: PTH108
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        reason = (
            f"file option direct = True: the filesystem of {folder.root!r} refuses O_DIRECT ({error.strerror}); "
            "use direct = False, or a path on a filesystem of a real device"
        )
        raise ConfigError(reason) from error


def _aligned_nbytes(view: memoryview) -> int:
    """Return how many leading bytes of *view* may go straight; 0 if it is not aligned, or read-only and thus unknown."""
    if view.readonly or len(view) < BLOCK_NBYTES:
        return 0
    if ctypes.addressof(ctypes.c_char.from_buffer(view)) % BLOCK_NBYTES:
        return 0
    return len(view) // BLOCK_NBYTES * BLOCK_NBYTES
