"""The least that a client of a Redis server can do: pipelined commands on sockets, replies received into place."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence

from benchmarks.subject import timed
from benchmarks.subjects.striped import Striped
from benchmarks.workload import Workload

_PIPELINE_NBYTES = 4 << 20
_TIMEOUT_S = 30.0


class BareRedis(Striped):
    """One socket a thread; nothing is checked but that there is a reply of the right length.

    Args:
        port: of the server on loopback.
    """

    def __init__(self, port: int, version: str, page_cache: str) -> None:
        self.version = version
        self.page_cache = page_cache
        self.calls = {
            "write": "socket.sendmsg of pipelined SET, up to 4 MiB",
            "read": "pipelined GET, socket.recv_into",
            "ranged": "pipelined GETRANGE, socket.recv_into",
            "exists": "EXISTS",
        }
        self.port = port

    def prepare(self, workload: Workload) -> None:
        super().prepare(workload)
        self._mine = threading.local()
        self._sockets: list[socket.socket] = []
        self._keys = [f"bare:{workload.object_nbytes}:{n}".encode() for n in range(workload.objects)]

    def exists(self) -> float:
        return timed(lambda: [self._ask(b"EXISTS", self._keys[n]) for batch in self._workload.batches() for n in batch])

    def wipe(self) -> None:
        self._ask(b"DEL", *self._keys)

    def release(self) -> None:
        for connection in self._sockets:
            connection.close()
        super().release()

    def _write(self, numbers: Sequence[int]) -> None:
        connection = self._connection()
        for group in self._groups(numbers):
            for number in group:
                body = self._source.views[number]
                head = _command_head(b"SET", self._keys[number], last_nbytes=body.nbytes)
                _send(connection, [head, body, b"\r\n"])
            replies = bytearray(len(b"+OK\r\n") * len(group))
            _receive(connection, memoryview(replies))
            if replies != b"+OK\r\n" * len(group):
                raise OSError(f"the server did not store: {bytes(replies[:80])!r}")

    def _read(self, numbers: Sequence[int], first_byte: int) -> None:
        connection = self._connection()
        nbytes = self._workload.object_nbytes - first_byte
        head = memoryview(bytearray(len(b"$%d\r\n" % nbytes)))
        for group in self._groups(numbers):
            connection.sendall(b"".join([self._get(number, first_byte) for number in group]))
            for number in group:
                _receive(connection, head)
                _receive(connection, self._target.views[number][first_byte:])
                _receive(connection, head[:2])

    def _get(self, number: int, first_byte: int) -> bytes:
        if not first_byte:
            return _command(b"GET", self._keys[number])
        return _command(b"GETRANGE", self._keys[number], b"%d" % first_byte, b"-1")

    def _groups(self, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
        step = max(1, _PIPELINE_NBYTES // self._workload.object_nbytes)
        for start in range(0, len(numbers), step):
            yield numbers[start : start + step]

    def _connection(self) -> socket.socket:
        mine: socket.socket | None = self._mine.__dict__.get("connection")
        if mine is None:
            mine = socket.create_connection(("127.0.0.1", self.port), timeout=_TIMEOUT_S)
            mine.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._mine.connection = mine
            self._sockets.append(mine)
        return mine

    def _ask(self, *words: bytes) -> bytes:
        connection = self._connection()
        connection.sendall(_command(*words))
        reply = b""
        while not reply.endswith(b"\r\n"):
            reply += connection.recv(4096)
        return reply


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def _command_head(*words: bytes, last_nbytes: int) -> bytes:
    """Return a command up to the body of its last argument."""
    said = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
    return b"*%d\r\n%b$%d\r\n" % (len(words) + 1, said, last_nbytes)


def _send(connection: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
    sent = connection.sendmsg(parts)
    for part in parts:
        if sent < len(part):
            connection.sendall(memoryview(part)[sent:])
        sent = max(0, sent - len(part))


def _receive(connection: socket.socket, target: memoryview) -> None:
    got = 0
    while got < len(target):
        more = connection.recv_into(target[got:], 0, socket.MSG_WAITALL)
        if not more:
            raise OSError("the server closed the connection")
        got += more
