"""Signed HTTP requests over kept connections, within a deadline, from and into the caller's memory.

Below the requests is the standard library's `http.client`, on sockets of our own: that way a body goes out
from the caller's buffers and comes into them with no copy in between, and one deadline holds for connecting,
sending and receiving together. Nothing is retried here.
"""

from __future__ import annotations

import io
import select
import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from types import MappingProxyType

from hicache_storage.backends.s3.dial import dial
from hicache_storage.backends.s3.patience import left_s
from hicache_storage.backends.s3.session import Endpoint
from hicache_storage.backends.s3.signing import EMPTY_PAYLOAD

_NONE: Mapping[str, str] = MappingProxyType({})

_DRAINED_NBYTES = 64 << 10
"""Up to this much of an answer that nobody wants is read, to keep the connection."""


class Line:
    """One connection. To `http.client` it is the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._ends_at = 0.0
        self._http = HTTPConnection("unused")
        self._http.auto_open = 0
        self._http.sock = self
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: Sequence[memoryview], ends_at: float
    ) -> HTTPResponse:
        """Return the answer to one request, its body not read yet."""
        self._ends_at = ends_at
        try:
            self._http.request(method, target, body=body or None, headers=headers)
        except (BrokenPipeError, ConnectionResetError):
            # A server that refuses need not take the whole body; what it said is worth more than the broken pipe.
            return self._http.getresponse()
        return self._http.getresponse()

    def is_fresh(self) -> bool:
        """Return whether the server has neither closed the connection nor said anything unasked."""
        return not self._poll.poll(0)

    def hang_up(self) -> None:
        self._socket.close()

    # -- what `http.client` expects of a socket ------------------------------------------------

    def sendall(self, data: bytes | memoryview) -> None:
        self._socket.settimeout(left_s(self._ends_at))
        self._socket.sendall(data)

    def recv_into(self, buffer: memoryview) -> int:
        self._socket.settimeout(left_s(self._ends_at))
        return self._socket.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:  # noqa: ARG002 - always "rb"
        return io.BufferedReader(_Incoming(self))

    def close(self) -> None:
        """Nothing: answers may still be read, see `hang_up`."""


class _Incoming(io.RawIOBase):
    """What arrives on a line."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # the stub says any buffer; it is a memoryview
        return self._line.recv_into(buffer)


class Wire:
    """Requests to one bucket. Thread-safe: every exchange has a line of its own."""

    def __init__(self, endpoint: Endpoint, max_idle: int) -> None:
        self._endpoint = endpoint
        self._max_idle = max_idle
        self._idle: deque[Line] = deque()
        self._closed = False
        self._absolute = ""
        self._unsigned: dict[str, str] = {}
        proxy = endpoint.route.proxy
        if proxy is not None and endpoint.route.tls is None:
            self._absolute = f"http://{endpoint.authority}"
            if proxy.authorization is not None:
                self._unsigned = {"proxy-authorization": proxy.authorization}

    @contextmanager
    def exchange(
        self,
        method: str,
        target: str,
        *,
        ends_at: float,
        headers: Mapping[str, str] = _NONE,
        body: Sequence[memoryview] = (),
        payload: str = EMPTY_PAYLOAD,
    ) -> Iterator[HTTPResponse]:
        """Send a request and give the answer; the block reads its body.

        Args:
            target: what follows the bucket's path, percent-encoded, with the query.
            headers: names in lower case; they are signed.
            body: flat views; sent one after the other.
            payload: SHA-256 of the body, or `UNSIGNED_PAYLOAD`.

        Raises:
            OSError, http.client.HTTPException: no answer by *ends_at*, or none that is HTTP.
        """
        path = self._endpoint.base_path + target
        signed = self._endpoint.signer.signed(method, path, {"host": self._endpoint.authority, **headers}, payload)
        signed |= self._unsigned
        if body or method in ("PUT", "POST"):
            signed["content-length"] = str(sum(map(len, body)))
        line = self._take(ends_at)
        kept = False
        try:
            response = line.ask(method, self._absolute + path, signed, body, ends_at)
            yield response
            kept = _is_done(response)
        finally:
            self._give(line) if kept else line.hang_up()

    def close(self) -> None:
        """No line is kept any more; those in use are hung up when their exchange ends."""
        self._closed = True
        self._hang_up_idle()

    def _take(self, ends_at: float) -> Line:
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return Line(dial(self._endpoint.route, ends_at))
            if line.is_fresh():
                return line
            line.hang_up()

    def _give(self, line: Line) -> None:
        if len(self._idle) < self._max_idle:
            self._idle.append(line)
        else:
            line.hang_up()
        if self._closed:
            self._hang_up_idle()

    def _hang_up_idle(self) -> None:
        while True:
            try:
                self._idle.pop().hang_up()
            except IndexError:
                return


def _is_done(response: HTTPResponse) -> bool:
    """Return whether the line can take another request; a short rest of the answer is read and dropped."""
    if response.will_close:
        return False
    if not response.isclosed():
        if response.length is None or response.length > _DRAINED_NBYTES:
            return False
        response.read()
    return response.isclosed()
