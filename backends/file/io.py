"""Whole transfers between an open file and the caller's buffers, in as few system calls as possible.

The kernel may move fewer bytes than asked for, and takes at most `IOV_MAX` buffers at once.
Interrupted calls are repeated by Python itself (PEP 475).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from hicache_storage.types import ObjectWrite, ReadableBuffer, WritableBuffer, nbytes_of

IOV_MAX = os.sysconf("SC_IOV_MAX")

PIECE_NBYTES = 512 << 10
"""How much is read before the caller may hash it: it fits a core's cache, and the calls still cost little."""


def read_range(
    fd: int,
    offset: int,
    targets: Sequence[WritableBuffer],
    nbytes: int,
    to_file_end: bool,
    on_filled: Callable[[int], None] | None,
) -> int:
    """Fill *targets*, *nbytes* in all, with the bytes from *offset* on.

    Args:
        to_file_end: the range should end where the file ends. One byte more is asked for, which
            tells so without a further system call.
        on_filled: called after each piece with the number of bytes in place.

    Returns:
        *nbytes*; less if the file ends before; more if *to_file_end* and it does not end there.
    """
    if len(targets) < IOV_MAX:
        done = _read_straight(fd, offset, targets, nbytes, to_file_end, on_filled)
        if done >= nbytes:
            return done
    else:
        done = 0
    views = flat_views(targets)
    if to_file_end:
        views.append(memoryview(bytearray(1)))
    while done < nbytes:
        got = os.preadv(fd, window(views, done, _piece_nbytes(nbytes - done, to_file_end=to_file_end)), offset + done)
        if got == 0:
            break
        done += got
        if on_filled is not None:
            on_filled(min(done, nbytes))
    return done


def _read_straight(
    fd: int,
    offset: int,
    targets: Sequence[WritableBuffer],
    nbytes: int,
    to_file_end: bool,
    on_filled: Callable[[int], None] | None,
) -> int:
    """Read as `read_range` does, up to the first call that gives less than it was asked for; return what is in place.

    This is the path that nearly every read takes to its end, so it does as little as possible.
    """
    done = 0
    rest = targets
    if on_filled is not None and targets and nbytes >= PIECE_NBYTES:
        first = memoryview(targets[0]).cast("B")
        while first.nbytes - done >= PIECE_NBYTES + PIECE_NBYTES // 2:
            got = os.preadv(fd, (first[done : done + PIECE_NBYTES],), offset + done)
            done += got
            if got:
                on_filled(done)
            if got < PIECE_NBYTES:
                return done
        rest = [first[done:], *targets[1:]]
        for piece, wanted in _groups(rest) if len(rest) > 2 else ():
            got = os.preadv(fd, piece, offset + done)
            done += got
            if got:
                on_filled(done)
            if got < wanted:
                return done
            rest = rest[len(piece) :]
    done += os.preadv(fd, [*rest, bytearray(1)] if to_file_end else rest, offset + done)
    if done >= nbytes and on_filled is not None:
        on_filled(nbytes)
    return done


def _groups(targets: Sequence[WritableBuffer]) -> Iterator[tuple[Sequence[WritableBuffer], int]]:
    """Yield targets that are a piece together, and their bytes; the last target and those around it are left over."""
    start = nbytes = 0
    for stop, target in enumerate(targets[:-1], 1):
        nbytes += nbytes_of(target)
        if nbytes >= PIECE_NBYTES:
            yield targets[start:stop], nbytes
            start, nbytes = stop, 0


def write_all(fd: int, write: ObjectWrite) -> None:
    """Make the file's content that of *write*. The file is empty before.

    A payload with a tail goes in pieces: the kernel's copy has just brought each into the cache when it is hashed.
    """
    tail = write.tail
    done = 0
    if tail is None and len(write.payload) <= IOV_MAX:
        done = os.pwritev(fd, write.payload, 0)
    views = flat_views(write.payload)
    nbytes = sum(map(len, views))
    while done < nbytes:
        wanted = nbytes - done if tail is None else _piece_nbytes(nbytes - done, to_file_end=False)
        done += os.pwritev(fd, window(views, done, wanted), done)
        if tail is not None:
            tail.advance(done)
    if tail is not None:
        rest = memoryview(tail.finish())
        while rest:
            moved = os.pwrite(fd, rest, done)
            done += moved
            rest = rest[moved:]


def flat_views(buffers: Iterable[ReadableBuffer]) -> list[memoryview]:
    """Return *buffers* as one-dimensional views of bytes; empty ones are left out."""
    views = (memoryview(buffer) for buffer in buffers)
    return [view if view.format == "B" and view.ndim == 1 else view.cast("B") for view in views if view.nbytes]


def window(views: Sequence[memoryview], start: int, nbytes: int) -> list[memoryview]:
    """Return the bytes ``[start, start + nbytes)`` of the concatenation of *views*, cut after `IOV_MAX` views."""
    cut: list[memoryview] = []
    for view in views:
        if start >= len(view):
            start -= len(view)
            continue
        part = view[start : start + nbytes]
        cut.append(part)
        nbytes -= len(part)
        start = 0
        if nbytes == 0 or len(cut) == IOV_MAX:
            break
    return cut


def _piece_nbytes(remaining: int, *, to_file_end: bool) -> int:
    """Return the size of the next piece; a rest of less than half a piece goes with the one before."""
    if remaining < PIECE_NBYTES + PIECE_NBYTES // 2:
        return remaining + to_file_end
    return PIECE_NBYTES
