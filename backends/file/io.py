"""Whole transfers between an open file and the caller's buffers, in as few system calls as possible.

The kernel may move fewer bytes than asked for, and takes at most `IOV_MAX` buffers at once.
Interrupted calls are repeated by Python itself (PEP 475).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TypeVar

from hicache_storage.types import ObjectWrite, ReadableBuffer, WritableBuffer

IOV_MAX = os.sysconf("SC_IOV_MAX")

PIECE_NBYTES = 512 << 10
"""How much is read before the caller may hash it: it fits a core's cache, and the calls still cost little."""

_WHOLE = 1 << 62
"""A piece that holds every object."""


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
    done = 0
    for piece, wanted in _pieces(targets, _WHOLE if on_filled is None else PIECE_NBYTES):
        is_last = to_file_end and done + wanted == nbytes
        got = os.preadv(fd, [*piece, bytearray(1)] if is_last else piece, offset + done)
        done += got
        if on_filled is not None and got:
            on_filled(min(done, nbytes))
        if got < wanted:
            return _read_rest(fd, offset, targets, nbytes, done, to_file_end, on_filled)
    return done


def _read_rest(
    fd: int,
    offset: int,
    targets: Sequence[WritableBuffer],
    nbytes: int,
    done: int,
    to_file_end: bool,
    on_filled: Callable[[int], None] | None,
) -> int:
    """Go on reading as `read_range` does behind the first *done* bytes, where the kernel gave less than it was asked for."""
    views = flat_views(targets)
    if to_file_end:
        views.append(memoryview(bytearray(1)))
    end = nbytes + to_file_end
    while done < end:
        got = os.preadv(fd, window(views, done, min(PIECE_NBYTES, end - done)), offset + done)
        if got == 0:
            break
        if on_filled is not None and done < nbytes:
            on_filled(min(done + got, nbytes))
        done += got
    return done


def write_all(fd: int, write: ObjectWrite) -> None:
    """Make the file's content that of *write*. The file is empty before.

    A payload with a tail goes in pieces: the kernel's copy has just brought each into the cache when it is hashed.
    """
    tail = write.tail
    done = 0
    for piece, wanted in _pieces(write.payload, _WHOLE if tail is None else PIECE_NBYTES):
        _write(fd, piece, wanted, done)
        done += wanted
        if tail is not None and wanted:
            tail.advance(done)
    if tail is not None:
        rest = tail.finish()
        _write(fd, (rest,), len(rest), done)


def _write(fd: int, buffers: Sequence[ReadableBuffer], nbytes: int, offset: int) -> None:
    done = os.pwritev(fd, buffers, offset)
    while done < nbytes:
        done += os.pwritev(fd, window(flat_views(buffers), done, nbytes - done), offset + done)


Buffer = TypeVar("Buffer", ReadableBuffer, WritableBuffer)


def _pieces(buffers: Sequence[Buffer], piece_nbytes: int) -> Iterator[tuple[Sequence[Buffer | memoryview], int]]:
    """Yield *buffers* in groups for one system call each, and the bytes of each group.

    A group has about *piece_nbytes*: large buffers are cut, small ones go together, and a rest of less than half
    a piece goes with the group before.
    """
    pieces: Sequence[Buffer | memoryview] = buffers
    sizes = _sizes(buffers)
    if max(sizes, default=0) >= piece_nbytes + piece_nbytes // 2:
        pieces = list(_cut(buffers, piece_nbytes))
        sizes = _sizes(pieces)
    ends = list(accumulate(sizes))
    first = start = 0
    while first < len(pieces):
        stop = min(bisect_left(ends, start + piece_nbytes, first) + 1, len(pieces))
        if ends[-1] - ends[stop - 1] < piece_nbytes // 2:
            stop = len(pieces)
        stop = min(stop, first + IOV_MAX - 1)
        yield pieces[first:stop], ends[stop - 1] - start
        first, start = stop, ends[stop - 1]


def _cut(buffers: Iterable[ReadableBuffer], piece_nbytes: int) -> Iterator[memoryview]:
    for view in flat_views(buffers):
        start = 0
        while len(view) - start >= piece_nbytes + piece_nbytes // 2:
            yield view[start : start + piece_nbytes]
            start += piece_nbytes
        yield view[start:]


def total_nbytes(buffers: Sequence[ReadableBuffer]) -> int:
    """Return the bytes of all *buffers* together."""
    return sum(_sizes(buffers))


def _sizes(buffers: Sequence[ReadableBuffer]) -> list[int]:
    # nbytes_of, spelled out: an object may lie in hundreds of places.
    return [buffer.nbytes if isinstance(buffer, memoryview) else len(buffer) for buffer in buffers]


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
