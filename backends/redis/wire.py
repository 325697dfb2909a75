"""One connection to a server: commands out of the caller's buffers, answers into the caller's memory.

redis-py connects and authenticates (see `connect`); from then on the socket is used directly. redis-py joins a command
to one string and cuts an answer out of another, which costs a copy each way: its SET of 1 MiB
ran at 0.2-0.4 GB/s where a plain ``sendall`` of the same bytes reached 0.8-1.9.

The rule that keeps answers apart: whoever sends counts the answers it is owed, and a connection that is still owed
one is never used again. So nobody ever reads an answer to somebody else's command.
"""

from __future__ import annotations

import math
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from hicache_storage.backends.redis.errors import ConnectionLost, ReplyError
from hicache_storage.deadline import remaining_s
from hicache_storage.types import ReadableBuffer, WritableBuffer, nbytes_of

Reply: TypeAlias = "int | bytes | ReplyError | list[Reply] | None"
"""An answer: a number, a string of either kind, nothing, an error, or several of these."""

PIECE_NBYTES = 256 << 10
"""How much is sent or received before it may be hashed: it fits a core's cache."""

_BUFFER_NBYTES = 16 << 10
_READ_AHEAD_NBYTES = 4 << 10
_MAX_BUFFERS = 512
_MAX_REPLY_NBYTES = 64 << 20
_TIMEVAL = struct.Struct("@ll")
_EARLY, _LATE = 0.5, 1.1
"""How far the kernel's timer may be from what is left: a call that ends early is repeated."""

_LONGEST_STEP_S = 86_400.0
"""A day: every timer of the kernel and of Python can run for that long."""

_CRLF = b"\r\n"
_ERROR, _NUMBER, _STRING, _BULK, _ARRAY = b"-:+$*"


def deadline() -> float:
    """Return when the deadline of the calling thread is over, on the monotonic clock; infinity if it has none."""
    return time.monotonic() + remaining_s(math.inf)


class Patience:
    """How long to wait for a server: so many seconds without progress, and never beyond the caller's own deadline.

    Args:
        ends_at: the deadline of a caller on another thread.
    """

    def __init__(self, step_s: float, ends_at: float = math.inf) -> None:
        self.step_s = min(step_s, _LONGEST_STEP_S)
        self._ends_at = min(ends_at, deadline())
        self._expires_at = min(time.monotonic() + self.step_s, self._ends_at)
        self._is_renewed = False

    def renew(self) -> None:
        """Something was completed: the next step, from its first wait on, has its full time again."""
        self._is_renewed = True

    def left_s(self) -> float:
        """Return the seconds that are left.

        Raises:
            ConnectionLost: there are none.
        """
        now_s = time.monotonic()
        if self._is_renewed:
            self._is_renewed = False
            self._expires_at = min(now_s + self.step_s, self._ends_at)
        left_s = self._expires_at - now_s
        if left_s <= 0:
            reason = f"no answer within {self.step_s:g} s"
            raise ConnectionLost(reason, silent=True)
        return left_s


class Wire:
    """A connected, authenticated socket. Used by one thread at a time; owns the socket.

    Attributes:
        owed: answers that were asked for and not read to their end.
        patience: how long its user waits; set anew by every user.
    """

    def __init__(self, sock: socket.socket, patience: Patience) -> None:
        self.owed = 0
        self.patience = patience
        self._sock = sock
        self._armed_s = 0.0
        self._buffer = bytearray(_BUFFER_NBYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._stop = 0
        sock.settimeout(None)

    @property
    def in_order(self) -> bool:
        """Whether every answer was read, and nothing but them."""
        return self.owed == 0 and self._start == self._stop

    def is_idle(self) -> bool:
        """Return whether the connection is open and nothing has come that nobody asked for. Does not block."""
        try:
            self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._sock.close()

    # -- sending -------------------------------------------------------------------------------

    def send(self, buffers: Sequence[ReadableBuffer]) -> None:
        """All *buffers* are on their way, one after the other.

        Raises:
            ConnectionLost: they may be there, in part, or not.
        """
        if len(buffers) > _MAX_BUFFERS:
            buffers = [b"".join(buffers)]
        try:
            sent = self._send_some(buffers)
            left = _behind(buffers, sent) if sent < sum(map(nbytes_of, buffers)) else []
            while left:
                left = _behind(left, self._send_some(left))
        except OSError as error:
            reason = f"sending: {error}"
            raise ConnectionLost(reason) from error

    def _send_some(self, buffers: Sequence[ReadableBuffer]) -> int:
        while True:
            self._arm()
            try:
                return self._sock.sendmsg(buffers)
            except BlockingIOError:
                continue

    # -- receiving -----------------------------------------------------------------------------

    def reply(self) -> Reply:
        """Return the next answer, which must be small.

        Raises:
            ConnectionLost: there is none, or it makes no sense.
        """
        kind, rest = self.header()
        if kind == _STRING:
            return rest
        if kind == _ERROR:
            return ReplyError(rest.decode("utf-8", "replace"))
        number = self._number(rest)
        if kind == _NUMBER:
            return number
        if number == -1 and kind in (_BULK, _ARRAY):
            return None
        if kind == _BULK and 0 <= number <= _MAX_REPLY_NBYTES:
            body = bytearray(number)
            self.fill([body])
            return bytes(body)
        if kind == _ARRAY and 0 <= number <= _MAX_REPLY_NBYTES:
            return [self.reply() for _ in range(number)]
        raise self._odd(bytes([kind]) + rest)

    def array_header(self) -> int | ReplyError:
        """Return how many elements the next answer has; they follow. An error may stand in its place."""
        kind, rest = self.header()
        if kind == _ERROR:
            return ReplyError(rest.decode("utf-8", "replace"))
        if kind != _ARRAY:
            raise self._odd(bytes([kind]) + rest)
        return self._number(rest)

    def bulk_header(self) -> int | ReplyError | None:
        """Return how many bytes the next answer has; they follow, for `fill` or `skip`. None = there is no string."""
        kind, rest = self.header()
        if kind == _ERROR:
            return ReplyError(rest.decode("utf-8", "replace"))
        number = self._number(rest)
        if kind != _BULK or number < -1:
            raise self._odd(bytes([kind]) + rest)
        return None if number == -1 else number

    def took(self, expected: bytes) -> bool:
        """Return whether the next bytes are *expected*, and if so they were read; else nothing was.

        Where all is as it should be, this is one comparison instead of the parsing of several answers.
        What comes must be as long as *expected*, or begin otherwise: more is waited for.
        """
        length = len(expected)
        while (there := min(self._stop - self._start, length)) < length:
            if not expected.startswith(self._view[self._start : self._start + there]):
                return False
            self._fill_buffer()
        if self._view[self._start : self._start + length] != expected:
            return False
        self._start += length
        return True

    def fill(self, targets: Sequence[WritableBuffer], on_filled: Callable[[int], None] | None = None) -> None:
        """The bytes of a string, as many as *targets* take, are in *targets*, and its end was read.

        Args:
            on_filled: called with the number of bytes in place, after every piece.

        Raises:
            ConnectionLost: they did not all come.
        """
        done = 0
        for target in targets:
            view = memoryview(target).cast("B")
            step = PIECE_NBYTES if on_filled is not None else max(1, len(view))
            for start in range(0, len(view), step):
                piece = view[start : start + step]
                self._take(piece)
                done += len(piece)
                if on_filled is not None:
                    on_filled(done)
        self._end_of_string()

    def skip(self, nbytes: int) -> None:
        """The bytes of a string were read and thrown away."""
        scratch = memoryview(bytearray(min(nbytes, PIECE_NBYTES)))
        while nbytes:
            some = scratch[:nbytes]
            self._take(some)
            nbytes -= len(some)
        self._end_of_string()

    def header(self) -> tuple[int, bytes]:
        """Return the kind of the next answer and the rest of its first line."""
        while True:
            end = self._buffer.find(_CRLF, self._start, self._stop)
            if end > self._start:
                kind, rest = self._buffer[self._start], bytes(self._view[self._start + 1 : end])
                self._start = end + 2
                return kind, rest
            if end == self._start or self._stop - self._start == _BUFFER_NBYTES:
                raise self._odd(bytes(self._view[self._start : self._stop]))
            self._fill_buffer()

    def _take(self, into: memoryview) -> None:
        """Fill *into*. The last bytes come through the buffer, for what follows them is wanted next."""
        taken = self._take_buffered(into)
        while taken < len(into):
            rest = into[taken:]
            if len(rest) <= _READ_AHEAD_NBYTES:
                self._fill_buffer()
                taken += self._take_buffered(rest)
            else:
                taken += self._receive(rest, wait_for_all=True)

    def _take_buffered(self, into: memoryview) -> int:
        """Put what is in the buffer into *into*, as far as it goes; return how many bytes these are."""
        taken = min(self._stop - self._start, len(into))
        if taken:
            into[:taken] = self._view[self._start : self._start + taken]
            self._start += taken
        return taken

    def _end_of_string(self) -> None:
        while self._stop - self._start < 2:
            self._fill_buffer()
        if self._view[self._start : self._start + 2] != _CRLF:
            raise self._odd(bytes(self._view[self._start : self._start + 2]))
        self._start += 2

    def _fill_buffer(self) -> None:
        kept = self._stop - self._start
        if self._start:
            self._view[:kept] = self._view[self._start : self._stop]
            self._start, self._stop = 0, kept
        self._stop += self._receive(self._view[kept:], wait_for_all=False)

    def _receive(self, into: memoryview, *, wait_for_all: bool) -> int:
        try:
            got = self._receive_some(into, wait_for_all=wait_for_all)
        except OSError as error:
            reason = f"receiving: {error}"
            raise ConnectionLost(reason) from error
        if got == 0:
            raise ConnectionLost("the server closed the connection")
        return got

    def _receive_some(self, into: memoryview, *, wait_for_all: bool) -> int:
        while True:
            self._arm()
            try:
                return self._sock.recv_into(into, 0, socket.MSG_WAITALL if wait_for_all else 0)
            except BlockingIOError:
                continue

    # -- the rest --------------------------------------------------------------------------------

    def _arm(self) -> None:
        """The next system call ends when the patience does or before, or a tenth of it later.

        The kernel watches the time: a socket with a timeout of Python's own costs a second system call
        each time, and cannot wait for all bytes in one.

        Raises:
            ConnectionLost: the patience is at its end.
        """
        left_s = self.patience.left_s()
        if not _EARLY * left_s <= self._armed_s <= _LATE * left_s:
            self._armed_s = left_s
            self._set_timeout(left_s)

    def _set_timeout(self, seconds: float) -> None:
        fraction, whole = math.modf(seconds)
        timeval = _TIMEVAL.pack(int(whole), max(1, int(fraction * 1e6)))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def _number(self, text: bytes) -> int:
        try:
            return int(text)
        except ValueError:
            raise self._odd(text) from None

    def _odd(self, what: bytes) -> ConnectionLost:
        return ConnectionLost(f"the server sent something unexpected: {what[:60]!r}")


class TLSWire(Wire):
    """The same over TLS, where the kernel cannot scatter, gather or watch the time."""

    def is_idle(self) -> bool:
        self._armed_s = 0.0
        self._sock.settimeout(0.0)
        try:
            self._sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def _send_some(self, buffers: Sequence[ReadableBuffer]) -> int:
        sent = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            start = 0
            while start < len(view):
                start += self._in_time(self._sock.send, view[start:])
            sent += start
        return sent

    def _receive_some(self, into: memoryview, *, wait_for_all: bool) -> int:  # noqa: ARG002 - records come as they come
        return self._in_time(self._sock.recv_into, into)

    def _in_time(self, call: Callable[[memoryview], int], view: memoryview) -> int:
        while True:
            self._arm()
            try:
                return call(view)
            except TimeoutError:
                continue

    def _set_timeout(self, seconds: float) -> None:
        self._sock.settimeout(seconds)


def _behind(buffers: Sequence[ReadableBuffer], sent: int) -> list[memoryview]:
    """Return what of *buffers* is left when *sent* bytes of them are gone."""
    left: list[memoryview] = []
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        if sent < len(view):
            left.append(view[sent:])
        sent = max(0, sent - len(view))
    return left
