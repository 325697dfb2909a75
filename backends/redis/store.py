"""The Redis backend: one object, one value, moved between the caller's memory and the socket."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from hicache_storage.backends.io_threads import IOThreads
from hicache_storage.backends.redis.commands import encode, receive
from hicache_storage.backends.redis.connect import Address, Connector, Target
from hicache_storage.backends.redis.errors import BACKEND
from hicache_storage.backends.redis.exchange import Call, Exchange, Trip
from hicache_storage.backends.redis.keys import Keys
from hicache_storage.backends.redis.large import LargeObjects
from hicache_storage.backends.redis.objects import Objects, Place, ReadItem, WriteItem
from hicache_storage.backends.redis.options import RedisOptions
from hicache_storage.backends.redis.pool import Pool
from hicache_storage.backends.redis.topology import topology_of
from hicache_storage.errors import CorruptObject, StoreError, StoreUnavailable
from hicache_storage.store import ObjectStore, check_key
from hicache_storage.types import (
    MISS,
    Capabilities,
    ObjectInfo,
    ObjectWrite,
    Outcome,
    RangeRead,
    ReadableBuffer,
    Status,
    WritableBuffer,
    WriteResult,
    failed,
)

T = TypeVar("T", ReadItem, WriteItem)

_SMALL_CALLS = 1024
_SCAN_COUNT = 1000


class RedisStore(ObjectStore):
    """Objects as values of a Redis or Valkey server, a Sentinel deployment or a Cluster.

    Nothing is connected before the first operation. Whether objects survive a restart of the server, and
    which of them make room for new ones, is the server's configuration.

    Raises:
        ConfigError: options that make no sense together.
    """

    name = BACKEND
    options_type = RedisOptions

    def __init__(self, options: RedisOptions) -> None:
        self.capabilities = Capabilities(durable=False, ttl=options.ttl_s is not None, keeps_deadline=True)
        target = Target.of(options)
        connector = Connector(options, target.login, tls=target.tls)
        ttl_ms = None if options.ttl_s is None else max(1, int(options.ttl_s * 1000))
        self._pool = Pool(connector.connect)
        self._exchange = Exchange(self._pool, topology_of(options, target, connector), options.deadline_s)
        large = LargeObjects(self._exchange, options.chunk_nbytes, options.pipeline_nbytes, ttl_ms)
        self._objects = Objects(self._exchange, large, options.chunk_nbytes, ttl_ms)
        self._keys = Keys(options.key_prefix)
        self._threads = IOThreads(options.io_threads, BACKEND)
        self._io_threads = options.io_threads
        self._pipeline_nbytes = options.pipeline_nbytes
        self._closed = False

    # -- moving bytes ----------------------------------------------------------------------------

    def read_into(
        self,
        key: str,
        offset: int,
        targets: Sequence[WritableBuffer],
        *,
        object_nbytes: int | None = None,
    ) -> bool:
        item = self._read_item(RangeRead(key, offset, targets, object_nbytes), 0)
        [outcome] = self._objects.read([item], Trip("read"))
        return _answer(outcome) is Status.HIT

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        return self._in_parallel(len(reads), lambda i: self._read_item(reads[i], i), self._objects.read, Trip("read"))

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        item = self._write_item(ObjectWrite(key, parts), 0)
        [outcome] = self._objects.write([item], Trip("write"))
        return WriteResult.STORED if _answer(outcome) is Status.STORED else WriteResult.ALREADY_THERE

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        return self._in_parallel(
            len(writes), lambda i: self._write_item(writes[i], i), self._objects.write, Trip("write")
        )

    def _in_parallel(
        self,
        count: int,
        make: Callable[[int], T],
        perform: Callable[[Sequence[T], Trip], list[Outcome]],
        trip: Trip,
    ) -> list[Outcome]:
        """Return the outcomes of *count* items, which threads make, and perform, in groups that fit the pipeline."""
        outcomes = [MISS] * count
        pending = deque(range(count))
        most = max(1, -(-count // self._io_threads))

        def drain(_: int) -> None:
            try:
                while group := self._next_group(pending, make, most, outcomes):
                    for item, outcome in zip(group, perform(group, trip), strict=True):
                        outcomes[item.place.position] = outcome
            finally:
                pending.clear()  # What ends one thread, such as an interrupt, ends the others with what they are at.

        self._threads.run(drain, range(min(self._io_threads, -(-count // most))))
        return outcomes

    def _next_group(self, pending: deque[int], make: Callable[[int], T], most: int, outcomes: list[Outcome]) -> list[T]:
        group: list[T] = []
        nbytes = 0
        while len(group) < most and (nbytes < self._pipeline_nbytes or not group):
            try:
                index = pending.popleft()
            except IndexError:
                break
            try:
                item = make(index)
            except StoreError as error:
                outcomes[index] = failed(error)
                continue
            group.append(item)
            nbytes += item.nbytes
        return group

    def _read_item(self, read: RangeRead, index: int) -> ReadItem:
        return ReadItem(self._place(read.key, index, "read"), read, read.nbytes)

    def _write_item(self, write: ObjectWrite, index: int) -> WriteItem:
        return WriteItem(self._place(write.key, index, "write"), write, write.nbytes)

    # -- the rest ----------------------------------------------------------------------------------

    def stat(self, key: str) -> ObjectInfo | None:
        [found] = self._objects.look([self._place(key, 0, "stat")], Trip("stat"))
        if isinstance(found, StoreError):
            raise found
        if found is None:
            return None
        if found.nbytes < 0:
            raise CorruptObject("a Redis value that is no object", backend=BACKEND, op="stat", key=key)
        return ObjectInfo(key, found.nbytes)

    def delete(self, key: str) -> bool:
        [outcome] = self._objects.delete([self._place(key, 0, "delete")], Trip("delete"))
        return _answer(outcome) is Status.HIT

    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self._of_places(keys, self._objects.exists, Trip("exists"))

    def delete_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self._of_places(keys, self._objects.delete, Trip("delete"))

    def touch_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self._of_places(keys, self._objects.touch, Trip("touch"))

    def _of_places(
        self, keys: Sequence[str], perform: Callable[[Sequence[Place], Trip], list[Outcome]], trip: Trip
    ) -> list[Outcome]:
        outcomes = [MISS] * len(keys)
        places: list[Place] = []
        for index, key in enumerate(keys):
            try:
                places.append(self._place(key, index, trip.op))
            except StoreError as error:
                outcomes[index] = failed(error)
        for start in range(0, len(places), _SMALL_CALLS):
            some = places[start : start + _SMALL_CALLS]
            for place, outcome in zip(some, perform(some, trip), strict=True):
                outcomes[place.position] = outcome
        return outcomes

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._check_open("list", "")
        trip = Trip("list", math.inf)  # A listing outlives the call in which it was begun.
        seen: set[str] = set()
        for address in self._exchange.servers(trip):
            for names in self._scan(address, prefix, trip):
                new = [name for name in dict.fromkeys(names) if name not in seen]
                seen.update(new)
                yield from self._infos(new, trip)

    def _scan(self, address: Address, prefix: str, trip: Trip) -> Iterator[list[str]]:
        """Yield the keys of the objects on one server, page by page; some come twice."""
        pattern = self._keys.pattern(prefix.encode("utf-8", "surrogatepass"))
        cursor = b"0"
        while True:
            command = encode(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % _SCAN_COUNT)
            match self._exchange.at(address, Call("", b"", command, receive), trip):
                case [bytes(cursor), [*redis_keys]]:
                    names = [self._keys.name(key) for key in redis_keys if isinstance(key, bytes)]
                    yield [name for name in names if name is not None]
                case answer:
                    reason = f"{answer!r} instead of a page of keys"
                    raise StoreUnavailable(reason, backend=BACKEND, op=trip.op)
            if cursor == b"0":
                return

    def _infos(self, names: Sequence[str], trip: Trip) -> Iterator[ObjectInfo]:
        places = [self._place(name, index, trip.op) for index, name in enumerate(names)]
        for place, found in zip(places, self._objects.look(places, trip), strict=True):
            if isinstance(found, StoreError):
                raise found
            if found is not None and found.nbytes >= 0:
                yield ObjectInfo(place.name, found.nbytes)

    def close(self) -> None:
        self._closed = True
        self._pool.close()
        self._threads.close()

    def _place(self, key: str, index: int, op: str) -> Place:
        self._check_open(op, key)
        encoded = check_key(key, self.capabilities, backend=BACKEND, op=op)
        return Place(index, key, self._keys.of(encoded))

    def _check_open(self, op: str, key: str) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed", backend=BACKEND, op=op, key=key)


def _answer(outcome: Outcome) -> Status:
    """Return how the one request of a batch ended; raise what it ended with, if it failed."""
    if outcome.error is not None:
        raise outcome.error
    return outcome.status
