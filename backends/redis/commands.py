"""The commands of the store, and how their answers are read.

There are no transactions: a server that is full refuses even to read within one. Where one command cannot tell
enough, several on one key travel together. A server works off what it has received without doing
anything else in between, so that others can come between two of these commands at one point at most: where
what was received ends. The same question before and after shows that nobody did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique

from hicache_storage.backends.redis.answers import Answers
from hicache_storage.backends.redis.errors import BACKEND, ConnectionLost, ReplyError
from hicache_storage.backends.redis.wire import Reply
from hicache_storage.errors import CorruptObject, RangeError, StoreError
from hicache_storage.types import RangeRead

NONCE, NBYTES, CHUNK_NBYTES = b"nonce", b"nbytes", b"chunk_nbytes"
"""Fields of the hash that stands in the place of a large object and says where its chunks are."""

_LOOK_COMMANDS = 5

_GET_RANGE = b"%b*4\r\n$8\r\nGETRANGE\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n%b"


@unique
class Read(Enum):
    """How the read or the touch of one object ended.

    ``CHUNKED``: it is no single value. ``UNCLEAR``: it is empty, or not there; a length of 0 says no more.
    """

    HIT = "hit"
    MISS = "miss"
    CHUNKED = "chunked"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Found:
    """What lies under a key.

    Attributes:
        nbytes: size of the object; -1 for something that is none.
        chunk_nbytes: size of its chunks but the last; 0 if it is one value.
        nonce: what the names of its chunks hold.
    """

    nbytes: int
    chunk_nbytes: int = 0
    nonce: bytes = b""

    @property
    def is_chunked(self) -> bool:
        return self.chunk_nbytes > 0

    def wrong_for(self, read: RangeRead, nbytes: int) -> StoreError | None:
        """Return why *read*, of *nbytes*, cannot be served from this; None if it can."""
        if self.nbytes < 0:
            return CorruptObject("a Redis value that is no object", backend=BACKEND, op="read", key=read.key)
        if read.object_nbytes is not None and read.object_nbytes != self.nbytes:
            reason = f"the object has {self.nbytes} bytes instead of {read.object_nbytes}"
            return CorruptObject(reason, backend=BACKEND, op="read", key=read.key)
        stop = read.offset + nbytes
        if read.offset < 0 or stop > self.nbytes:
            reason = f"bytes [{read.offset}, {stop}) of an object of {self.nbytes} bytes"
            return RangeError(reason, backend=BACKEND, op="read", key=read.key)
        return None


def encode(*words: bytes) -> bytes:
    """Return a command as it is sent."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def checked(answer: Reply) -> Reply:
    """Return *answer* unless it is an error, which is raised."""
    if isinstance(answer, ReplyError):
        raise answer
    return answer


def receive(wire: Answers) -> Reply:
    """Return the answer to one command."""
    return checked(wire.reply())


def receive_flag(wire: Answers) -> bool:
    """Return whether the answer is a number above 0: something was there."""
    answer = checked(wire.reply())
    if not isinstance(answer, int):
        reason = f"{answer!r} instead of a number"
        raise ConnectionLost(reason)
    return answer > 0


def strlen(key: bytes) -> bytes:
    """Return the command whose answer `receive_size` reads. A value that is asked counts as used."""
    return b"*2\r\n$6\r\nSTRLEN\r\n$%d\r\n%b\r\n" % (len(key), key)


def receive_size(wire: Answers) -> int:
    """Return the answer to ``STRLEN``: 0 also where nothing is, -1 for something that is no single value."""
    answer = checked_but_for_type(wire.reply())
    return answer if isinstance(answer, int) else -1


def receive_set(wire: Answers) -> bool:
    """Return whether ``SET ... NX`` stored the value; it does not where there is one."""
    return wire.took(b"+OK\r\n") or checked(wire.reply()) is not None


# -- what lies under a key -----------------------------------------------------------------------


def look(key: bytes) -> bytes:
    """Return the commands that ask for all that `receive_look` needs."""
    fields, nbytes = encode(b"HMGET", key, NONCE, NBYTES, CHUNK_NBYTES), strlen(key)
    return b"".join((fields, nbytes, encode(b"EXISTS", key), nbytes, fields))


def receive_look(wire: Answers) -> Found | None:
    """Return what lies under a key; None if nothing does.

    A length of 0 means an empty value or none; whichever side of `EXISTS` nobody came between tells which.
    """
    answers = [wire.reply() for _ in range(_LOOK_COMMANDS)]
    before, nbytes, exists, nbytes_after, after = [checked_but_for_type(answer) for answer in answers]
    for size in (nbytes, nbytes_after):
        if isinstance(size, int) and size > 0:
            return Found(size)
    chunked = _chunked(before) or _chunked(after)
    if chunked is not None or exists == 0:
        return chunked
    return Found(0 if nbytes == nbytes_after == 0 else -1)


def _chunked(fields: Reply) -> Found | None:
    match fields:
        case [bytes(nonce), bytes(size), bytes(chunk)] if size.isdigit() and chunk.isdigit() and int(chunk) > 0:
            return Found(int(size), int(chunk), nonce)
        case _:
            return None


def checked_but_for_type(answer: Reply) -> Reply:
    """Return *answer*, raised if it is an error other than that the value is of another type."""
    if isinstance(answer, ReplyError) and answer.code == "WRONGTYPE":
        return answer
    return checked(answer)


# -- reading --------------------------------------------------------------------------------------


class WholeRead:
    """The read of an object from its first to its last byte: one command, and its answer states the size."""

    def __init__(self, read: RangeRead, nbytes: int) -> None:
        self._read = read
        self._nbytes = nbytes

    @staticmethod
    def command(key: bytes) -> bytes:
        return b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key)

    def receive(self, wire: Answers) -> Read:
        length = self._nbytes if wire.took(b"$%d\r\n" % self._nbytes) else wire.bulk_header()
        if length == self._nbytes:
            wire.fill(self._read.targets, self._read.on_filled)
            return Read.HIT
        if length is None:
            return Read.MISS
        if isinstance(length, ReplyError):
            if length.code == "WRONGTYPE":
                return Read.CHUNKED
            raise length
        wire.skip(length)
        reason = f"{length} instead of {self._nbytes} bytes"
        raise Found(length).wrong_for(self._read, self._nbytes) or ConnectionLost(reason)


class PartRead:
    """The read of a range, between two looks at the size: so size and bytes are of one object."""

    def __init__(self, read: RangeRead, nbytes: int) -> None:
        self._read = read
        self._nbytes = nbytes

    def command(self, key: bytes) -> bytes:
        start, last = b"%d" % self._read.offset, b"%d" % (self._read.offset + self._nbytes - 1)
        size = strlen(key)
        return _GET_RANGE % (size, len(key), key, len(start), start, len(last), last, size)

    def receive(self, wire: Answers) -> Read:
        expected = self._read.object_nbytes
        if expected is not None and wire.took(b":%d\r\n$%d\r\n" % (expected, self._nbytes)):
            wire.fill(self._read.targets, self._read.on_filled)
            after = wire.reply()
            return Read.HIT if after == expected else self._judged(expected, self._nbytes, after, filled=True)
        before, length = wire.reply(), wire.bulk_header()
        filled = length == self._nbytes and isinstance(before, int) and expected in (None, before)
        if filled:
            wire.fill(self._read.targets, self._read.on_filled)
        elif isinstance(length, int):
            wire.skip(length)
        return self._judged(before, length, wire.reply(), filled=filled)

    def _judged(self, before: Reply, length: int | ReplyError | None, after: Reply, *, filled: bool) -> Read:
        size = checked_but_for_type(before)
        if not isinstance(size, int):
            return Read.CHUNKED
        if size == 0:
            return Read.UNCLEAR
        wrong = Found(size).wrong_for(self._read, self._nbytes)
        if wrong is not None:
            raise wrong
        if filled and after == before:
            return Read.HIT
        if filled and self._read.on_filled is not None:
            self._read.on_filled(0)  # An error that leads to another server has the range filled a second time.
        for answer in (length, after):
            checked_but_for_type(answer)
        # The object was replaced or deleted meanwhile: what was asked for is not there any more.
        return Read.MISS


class NoRead:
    """The read of no bytes: only what lies there is asked for."""

    def __init__(self, read: RangeRead, nbytes: int) -> None:
        self._read = read
        self._nbytes = nbytes

    @staticmethod
    def command(key: bytes) -> bytes:
        return look(key)

    def receive(self, wire: Answers) -> Read:
        found = receive_look(wire)
        if found is None:
            return Read.MISS
        wrong = found.wrong_for(self._read, self._nbytes)
        if wrong is not None:
            raise wrong
        return Read.HIT


def plan_read(read: RangeRead, nbytes: int) -> WholeRead | PartRead | NoRead:
    """Return the cheapest way to perform *read* of *nbytes*."""
    if nbytes == 0 or read.offset < 0:
        return NoRead(read, nbytes)
    if read.offset == 0 and read.object_nbytes == nbytes:
        return WholeRead(read, nbytes)
    return PartRead(read, nbytes)


# -- touching -------------------------------------------------------------------------------------


class Touch:
    """Makes a value count as used, and live for its time if values have one; a look at its size does the first."""

    def __init__(self, ttl_ms: int | None) -> None:
        self._ttl = None if ttl_ms is None else b"%d" % ttl_ms

    def command(self, key: bytes) -> bytes:
        return strlen(key) if self._ttl is None else strlen(key) + encode(b"PEXPIRE", key, self._ttl)

    def receive(self, wire: Answers) -> Read:
        if self._ttl is None:
            nbytes = receive_size(wire)
            return Read.HIT if nbytes > 0 else Read.UNCLEAR if nbytes == 0 else Read.CHUNKED
        size, there = wire.reply(), wire.reply()
        if not isinstance(checked_but_for_type(size), int):
            return Read.CHUNKED
        return Read.HIT if checked(there) == 1 else Read.MISS


# -- writing --------------------------------------------------------------------------------------


class SetCommand:
    """``SET key value``, cut where the value goes."""

    def __init__(self, ttl_ms: int | None, *, only_if_absent: bool) -> None:
        words: Sequence[bytes] = (b"NX",) if only_if_absent else ()
        if ttl_ms is not None:
            words = (*words, b"PX", b"%d" % ttl_ms)
        self._words = 3 + len(words)
        self.tail = b"\r\n" + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])

    def head(self, key: bytes, nbytes: int) -> bytes:
        return b"*%d\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (self._words, len(key), key, nbytes)
