"""Which ranges are read in one request, and how its answer is dealt out to the caller's memory."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPResponse, IncompleteRead

from hicache_storage.backends.s3.errors import BACKEND
from hicache_storage.errors import CorruptObject, RangeError, StoreError
from hicache_storage.types import HIT, Outcome, RangeRead, failed, nbytes_of

_PIECE_NBYTES = 256 << 10
"""How much is read before the caller may hash it: it fits a core's cache."""

_SKIPPED_NBYTES = 64 << 10

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Want:
    """One request of a batch, with its place there."""

    index: int
    read: RangeRead
    nbytes: int

    @classmethod
    def of(cls, index: int, read: RangeRead) -> Want:
        return cls(index, read, read.nbytes)

    @property
    def stop(self) -> int:
        return self.read.offset + self.nbytes

    @property
    def is_range(self) -> bool:
        """Whether HTTP can ask for it: a byte range has at least one byte."""
        return self.nbytes > 0 and self.read.offset >= 0


class RunQueue:
    """The requests of a batch, given out in runs that one HTTP request answers. Thread-safe.

    A run is made of consecutive requests for one key whose ranges follow each other with gaps of at
    most *gap_nbytes*. Each request is asked for once, when it is its turn.
    """

    def __init__(self, reads: Sequence[RangeRead], gap_nbytes: int) -> None:
        self._reads = reads
        self._gap_nbytes = gap_nbytes
        self._next = 0
        self._ahead: Want | None = None
        self._lock = threading.Lock()

    def take(self) -> list[Want]:
        """Return the next run; empty = there is none."""
        with self._lock:
            first = self._pop()
            if first is None:
                return []
            run = [first]
            while (want := self._pop()) is not None:
                if not self._follows(want, run[-1]):
                    self._ahead = want
                    break
                run.append(want)
            return run

    def _pop(self) -> Want | None:
        if self._ahead is not None:
            want, self._ahead = self._ahead, None
            return want
        if self._next == len(self._reads):
            return None
        index = self._next
        self._next += 1
        return Want.of(index, self._reads[index])

    def _follows(self, want: Want, before: Want) -> bool:
        return (
            want.read.key == before.read.key
            and want.is_range
            and before.is_range
            and 0 <= want.read.offset - before.stop <= self._gap_nbytes
        )


@dataclass(frozen=True, slots=True)
class Extent:
    """Which bytes an answer holds, ``[start, stop)`` of an object of *total* bytes."""

    start: int
    stop: int
    total: int

    @classmethod
    def of(cls, response: HTTPResponse, run: Sequence[Want]) -> Extent:
        """Return what the answer to the request for *run* says that it holds.

        Raises:
            StoreError: its status, Content-Range and Content-Length contradict the request or each other.
        """
        start, stop, length = run[0].read.offset, run[-1].stop, response.length
        if response.status == 200 and length is not None:
            return cls(0, length, length)
        match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if match is not None:
            got = cls(int(match[1]), int(match[2]) + 1, int(match[3]))
            if got.start == start and got.stop == min(stop, got.total) and length in (None, got.stop - start):
                return got
        reason = (
            f"asked for bytes [{start}, {stop}), answered status {response.status}, "
            f"Content-Range {response.headers.get('content-range')}, Content-Length {length}"
        )
        raise StoreError(reason, backend=BACKEND, op="read", key=run[0].read.key)


def verdict(want: Want, object_nbytes: int) -> StoreError | None:
    """Return what is wrong with a request for an object of *object_nbytes*, None if nothing is."""
    read = want.read
    if read.object_nbytes is not None and object_nbytes != read.object_nbytes:
        reason = f"the object has {object_nbytes} bytes instead of {read.object_nbytes}"
        return CorruptObject(reason, backend=BACKEND, op="read", key=read.key)
    if read.offset < 0 or want.stop > object_nbytes:
        reason = f"bytes [{read.offset}, {want.stop}) of an object of {object_nbytes} bytes"
        return RangeError(reason, backend=BACKEND, op="read", key=read.key)
    return None


def deal_out(response: HTTPResponse, extent: Extent, run: Sequence[Want], outcomes: list[Outcome | None]) -> None:
    """Fill the targets of *run* from the answer and set the outcome of each request as it is done.

    Raises:
        OSError, http.client.HTTPException: the answer broke off; the outcomes still unset are undecided.
    """
    position = extent.start
    for want in run:
        error = verdict(want, extent.total)
        if error is not None:
            outcomes[want.index] = failed(error)
            continue
        _skip(response, want.read.offset - position)
        _fill(response, want)
        position = want.stop
        outcomes[want.index] = HIT


def _fill(response: HTTPResponse, want: Want) -> None:
    on_filled = want.read.on_filled
    done = 0
    for target in want.read.targets:
        if nbytes_of(target) == 0:
            continue  # A view of nothing cannot be cast.
        view = memoryview(target).cast("B")
        start = 0
        while start < len(view):
            got = response.readinto(view[start : start + _PIECE_NBYTES])
            if got == 0:
                raise IncompleteRead(b"", want.nbytes - done)
            start += got
            done += got
            if on_filled is not None:
                on_filled(done)


def _skip(response: HTTPResponse, nbytes: int) -> None:
    scratch = memoryview(bytearray(min(nbytes, _SKIPPED_NBYTES)))
    while nbytes > 0:
        got = response.readinto(scratch[:nbytes])
        if got == 0:
            raise IncompleteRead(b"", nbytes)
        nbytes -= got
