"""Objects over the size of one Redis value: several values, and a hash in the object's place that says where they are.

    {hicache:KEY}NONCE:0, {hicache:KEY}NONCE:1, ...     the chunks, written first; nobody knows their names
    hicache:KEY = hash {nonce, nbytes, chunk_nbytes}    published last, in one step with the chunks' lives

Whoever sees the hash can therefore read every byte, and chunks never change, for each writer draws a NONCE
of its own. Until they are published chunks have a time to live, so that a killed writer leaves nothing
behind for long. The braces put the chunks into the cluster slot of their object.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from hicache_storage.backends.redis.answers import Answers
from hicache_storage.backends.redis.commands import (
    Found,
    Read,
    SetCommand,
    encode,
    look,
    plan_read,
    receive_flag,
    receive_look,
    receive_set,
)
from hicache_storage.backends.redis.errors import BACKEND, ReplyError
from hicache_storage.backends.redis.exchange import Call, Exchange, Trip
from hicache_storage.errors import CorruptObject, StoreError, StoreUnavailable
from hicache_storage.types import ObjectWrite, RangeRead, ReadableBuffer, WritableBuffer, WriteResult, nbytes_of

T = TypeVar("T")

_UNPUBLISHED_TTL_MS = 600_000
_TRIES = 4

_PUBLISH = b"""
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then return redis.error_reply('TRYAGAIN a chunk is gone already') end
end
for i = 2, #KEYS do
  if ARGV[4] == '0' then redis.call('PERSIST', KEYS[i]) else redis.call('PEXPIRE', KEYS[i], ARGV[4]) end
end
redis.call('HSET', KEYS[1], 'nonce', ARGV[1], 'nbytes', ARGV[2], 'chunk_nbytes', ARGV[3])
if ARGV[4] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end
return 1
"""

_REMOVE = b"""
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' or redis.call('HGET', KEYS[1], 'nonce') ~= ARGV[1] then return 0 end
for i = 1, #KEYS do redis.call('UNLINK', KEYS[i]) end
return 1
"""

_DROP = b"""
if redis.call('TYPE', KEYS[1]).ok == 'hash' and redis.call('HGET', KEYS[1], 'nonce') == ARGV[1] then return 0 end
for i = 2, #KEYS do redis.call('UNLINK', KEYS[i]) end
return 1
"""

_TOUCH = b"""
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' or redis.call('HGET', KEYS[1], 'nonce') ~= ARGV[1] then return 0 end
for i = 1, #KEYS do
  if ARGV[2] == '0' then redis.call('TOUCH', KEYS[i]) else redis.call('PEXPIRE', KEYS[i], ARGV[2]) end
end
return 1
"""
"""Scripts, for what must happen at once. Every key they use is handed to them, as a cluster asks for."""


class LargeObjects:
    """Reads, writes and removes objects of several values. Thread-safe."""

    def __init__(self, exchange: Exchange, chunk_nbytes: int, pipeline_nbytes: int, ttl_ms: int | None) -> None:
        self._exchange = exchange
        self._chunk_nbytes = chunk_nbytes
        self._pipeline_nbytes = pipeline_nbytes
        self._ttl_ms = ttl_ms
        self._set = SetCommand(_UNPUBLISHED_TTL_MS, only_if_absent=True)

    def write(self, name: str, key: bytes, parts: Sequence[ReadableBuffer], trip: Trip) -> WriteResult:
        """The object is there, whole. Another one in its place is removed.

        Raises:
            StoreError: it is not, or no answer said that it is; chunks without it are gone or will be.
        """
        nbytes = sum(map(nbytes_of, parts))
        found = self.found(name, key, trip)
        if found is not None and found.nbytes == nbytes and self._lives_on(name, key, found, trip):
            return WriteResult.ALREADY_THERE
        new = Found(nbytes, self._chunk_nbytes, secrets.token_hex(8).encode())
        try:
            self._put(name, key, new, parts, trip)
            result = self._publish(name, key, new, trip)
        except StoreError:
            self._drop(name, key, new, trip)
            raise
        if result is WriteResult.ALREADY_THERE:
            self._drop(name, key, new, trip)
        return result

    def read(self, read: RangeRead, nbytes: int, key: bytes, trip: Trip) -> bool:
        """The targets of *read*, *nbytes* in all, are filled; False if the object is not there.

        Raises:
            StoreError: they are not.
        """
        before: Found | None = None
        for _ in range(_TRIES):
            if read.on_filled is not None:
                read.on_filled(0)  # Whoever calls has tried to read a single value, and may have met some bytes.
            found = self.found(read.key, key, trip)
            if found is None:
                return False
            if found == before:
                raise CorruptObject("a chunk of the object is missing", backend=BACKEND, op="read", key=read.key)
            wrong = found.wrong_for(read, nbytes)
            if wrong is not None:
                raise wrong
            if found.is_chunked:
                if self._fetch(read, nbytes, key, found, trip):
                    return True
                before = found
                continue
            plan = plan_read(read, nbytes)
            how = self._exchange.one(Call(read.key, key, plan.command(key), plan.receive), trip)
            if how is Read.HIT or how is Read.MISS:
                return how is Read.HIT
        raise restless(read.key, trip)

    def remove(self, name: str, key: bytes, found: Found, trip: Trip) -> bool:
        """*found* is no longer under *key*; the result says whether it was until now."""
        if not found.is_chunked:
            return self._exchange.one(Call(name, key, encode(b"UNLINK", key), receive_flag), trip)
        return self._run(_REMOVE, name, key, found, (found.nonce,), trip)

    def touch(self, name: str, key: bytes, found: Found, trip: Trip) -> bool:
        """All of *found* counts as used now, and lives as long as a new object; the result says whether it is there."""
        if not found.is_chunked:
            used = encode(b"TOUCH", key) if self._ttl_ms is None else encode(b"PEXPIRE", key, b"%d" % self._ttl_ms)
            return self._exchange.one(Call(name, key, used, receive_flag), trip)
        return self._run(_TOUCH, name, key, found, (found.nonce, b"%d" % (self._ttl_ms or 0)), trip)

    def found(self, name: str, key: bytes, trip: Trip) -> Found | None:
        """Return what lies under *key*."""
        return self._exchange.one(Call(name, key, look(key), receive_look), trip)

    def _lives_on(self, name: str, key: bytes, found: Found, trip: Trip) -> bool:
        """Return whether *found* is still there; it lives as long as a new object."""
        return self._ttl_ms is None or self.touch(name, key, found, trip)

    def _put(self, name: str, key: bytes, new: Found, parts: Sequence[ReadableBuffer], trip: Trip) -> None:
        calls: list[Call[bool]] = []
        for chunk, start, stop in _chunks(new, 0, new.nbytes):
            chunk_key = _chunk_key(key, new, chunk)
            head = self._set.head(chunk_key, stop - start)
            views = _cut(parts, chunk * new.chunk_nbytes + start, stop - start)
            calls.append(Call(name, chunk_key, head, receive_set, ObjectWrite(name, views), self._set.tail))
        self._all(calls, new.chunk_nbytes, trip)

    def _publish(self, name: str, key: bytes, new: Found, trip: Trip) -> WriteResult:
        numbers = [b"%d" % number for number in (new.nbytes, new.chunk_nbytes, self._ttl_ms or 0)]
        for _ in range(_TRIES):
            if self._run(_PUBLISH, name, key, new, (new.nonce, *numbers), trip):
                return WriteResult.STORED
            found = self.found(name, key, trip)
            if found is not None and found.nbytes == new.nbytes:
                return WriteResult.ALREADY_THERE
            if found is not None:
                self.remove(name, key, found, trip)
        raise restless(name, trip)

    def _drop(self, name: str, key: bytes, new: Found, trip: Trip) -> None:
        """Chunks that were not published are gone; where that fails they go by themselves, later.

        Those of which it was only not heard that they are published stay.
        """
        with suppress(StoreError):
            self._run(_DROP, name, key, new, (new.nonce,), trip)

    def _fetch(self, read: RangeRead, nbytes: int, key: bytes, found: Found, trip: Trip) -> bool:
        """Fill the targets of *read*; return whether all chunks were there."""
        calls: list[Call[bool]] = []
        front = _Front(read.on_filled)
        done = 0
        for chunk, start, stop in _chunks(found, read.offset, read.offset + nbytes):
            chunk_key = _chunk_key(key, found, chunk)
            command = encode(b"GETRANGE", chunk_key, b"%d" % start, b"%d" % (stop - 1))
            targets = _cut(read.targets, done, stop - start)
            receive = partial(_receive_chunk, targets, stop - start, front.hook(done, stop - start))
            calls.append(Call(read.key, chunk_key, command, receive))
            done += stop - start
        return all(self._all(calls, found.chunk_nbytes, trip))

    def _run(self, script: bytes, name: str, key: bytes, found: Found, arguments: Sequence[bytes], trip: Trip) -> bool:
        keys = [key, *(_chunk_key(key, found, chunk) for chunk, _, _ in _chunks(found, 0, found.nbytes))]
        command = encode(b"EVAL", script, b"%d" % len(keys), *keys, *arguments)
        return self._exchange.one(Call(name, key, command, receive_flag), trip)

    def _all(self, calls: Sequence[Call[T]], call_nbytes: int, trip: Trip) -> list[T]:
        """Return all answers, with as many calls on the way at once as fit the pipeline."""
        step = max(1, self._pipeline_nbytes // call_nbytes)
        answers: list[T] = []
        for start in range(0, len(calls), step):
            for answer in self._exchange.all(calls[start : start + step], trip):
                if isinstance(answer, StoreError):
                    raise answer
                answers.append(answer)
        return answers


def _chunk_key(key: bytes, found: Found, chunk: int) -> bytes:
    return b"{%b}%b:%d" % (key, found.nonce, chunk)


def _chunks(found: Found, offset: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield which chunks hold bytes ``[offset, stop)`` of the object, and which bytes of each chunk these are."""
    step = found.chunk_nbytes
    while offset < stop:
        chunk, start = divmod(offset, step)
        length = min(step - start, stop - offset)
        yield chunk, start, start + length
        offset += length


def _cut(buffers: Sequence[WritableBuffer] | Sequence[ReadableBuffer], offset: int, length: int) -> list[memoryview]:
    """Return views of bytes ``[offset, offset + length)`` of the concatenation of *buffers*."""
    views: list[memoryview] = []
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        piece = view[max(0, offset) : max(0, offset + length)]
        if len(piece):
            views.append(piece)
        offset -= len(view)
    return views


class _Front:
    """How far a range is filled from its start on: a server that hands a slot over sends chunks out of order."""

    def __init__(self, on_filled: Callable[[int], None] | None) -> None:
        self._told = on_filled
        self._nbytes = 0

    def hook(self, start: int, nbytes: int) -> Callable[[int], None] | None:
        """Return what to tell of the chunk that fills *nbytes* of the range from *start* on; None if nobody listens."""
        told = self._told
        if told is None:
            return None

        def on_filled(done: int) -> None:
            if start == self._nbytes:
                told(start + done)
                if done == nbytes:
                    self._nbytes += nbytes

        return on_filled


def _receive_chunk(
    targets: Sequence[memoryview], nbytes: int, on_filled: Callable[[int], None] | None, wire: Answers
) -> bool:
    """Fill *targets* with a part of a chunk; return whether it was all there."""
    length = wire.bulk_header()
    if isinstance(length, ReplyError):
        raise length
    if length != nbytes:
        wire.skip(length or 0)
        return False
    wire.fill(targets, on_filled)
    return True


def restless(name: str, trip: Trip) -> StoreError:
    """Return the error of an operation that others kept from coming to an end."""
    return StoreUnavailable("other clients replace the object all the time", backend=BACKEND, op=trip.op, key=name)
