"""Calls to the servers that hold their keys: all are sent, then all are answered, in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from hicache_storage.backends.redis.answers import Answers, EverySecond
from hicache_storage.backends.redis.connect import Address
from hicache_storage.backends.redis.errors import BACKEND, ConnectionLost, ReplyError, store_error
from hicache_storage.backends.redis.pool import Pool
from hicache_storage.backends.redis.topology import Topology
from hicache_storage.backends.redis.wire import PIECE_NBYTES, Patience, Wire, deadline
from hicache_storage.errors import StoreError, StoreUnavailable
from hicache_storage.types import ObjectWrite, ReadableBuffer

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_MAX_HOPS = 3
_ASKING = b"*1\r\n$6\r\nASKING\r\n"
_STALE = frozenset({"READONLY", "CLUSTERDOWN", "MASTERDOWN", "MOVED"})
"""Answers which say that the keys are somewhere else by now, or soon will be."""


class Call(NamedTuple, Generic[T_co]):
    """One command on one key, or several that travel together.

    Attributes:
        name: the object's key, for errors.
        key: the Redis key; its slot decides which server of a cluster is asked.
        head: the command or commands, up to the large argument if there is one.
        receive: reads all of its answers, whatever they say, and returns what they mean. Raises
            `ReplyError` for an error and `StoreError` for an answer that is no good.
        body: the large argument; its tail is made while it is sent.
        tail: what follows the large argument.
    """

    name: str
    key: bytes
    head: bytes
    receive: Callable[[Answers], T_co]
    body: ObjectWrite | None = None
    tail: bytes = b""


@dataclass(slots=True)
class Trip:
    """One operation of the store, shared by its threads, and what it has found out about the servers so far.

    Made on the caller's thread, whose deadline holds on all of them.

    Attributes:
        ends_at: when the operation must have ended, on the monotonic clock.
        given_up: servers that did not answer in time. They are not asked again, so that one costs its time once.
        lost: why no server can be found, if so.
    """

    op: str
    ends_at: float = field(default_factory=deadline)
    given_up: dict[Address, StoreError] = field(default_factory=dict)
    lost: StoreError | None = None


@dataclass(slots=True)
class _Group:
    """The calls, by index, for one server."""

    address: Address
    asking: bool
    indexes: list[int] = field(default_factory=list)


class _Redirect(NamedTuple):
    """An answer which says that another server is to be asked."""

    said_by: Address
    error: ReplyError


class _Round(Generic[T]):
    """Calls and what came of them."""

    def __init__(self, calls: Sequence[Call[T]], trip: Trip, patience: Patience) -> None:
        self.calls = calls
        self.trip = trip
        self.patience = patience
        self.answers: list[T | StoreError] = [StoreUnavailable("not asked", backend=BACKEND, op=trip.op)] * len(calls)
        self.redirects: dict[int, _Redirect] = {}

    def fail(self, indexes: Sequence[int], error: Exception) -> None:
        for index in indexes:
            self.answers[index] = _as_store_error(error, self.trip.op, self.calls[index].name)


class Exchange:
    """Carries calls to where their keys are. Thread-safe."""

    def __init__(self, pool: Pool, topology: Topology, deadline_s: float) -> None:
        self._pool = pool
        self._topology = topology
        self._deadline_s = deadline_s

    @property
    def takes_several_keys(self) -> bool:
        """Whether one call may name any keys together."""
        return not self._topology.is_split

    def all(self, calls: Sequence[Call[T]], trip: Trip) -> list[T | StoreError]:
        """Return the answer to each call, in order, or why there is none.

        A server that fails, fails the calls on its own keys only.
        """
        if not calls:
            return []
        done = _Round(calls, trip, Patience(self._deadline_s, trip.ends_at))
        self._ask(self._by_server(done), done)
        for _ in range(_MAX_HOPS):
            if not done.redirects:
                break
            self._ask(self._redirected(done), done)
        for index, redirect in done.redirects.items():
            done.fail([index], redirect.error)
        return done.answers

    def one(self, call: Call[T], trip: Trip) -> T:
        """Return the answer to one call.

        Raises:
            StoreError: there is none.
        """
        [answer] = self.all([call], trip)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def at(self, address: Address, call: Call[T], trip: Trip) -> T:
        """Return the answer of the server at *address*, whoever holds the key.

        Raises:
            StoreError: there is none.
        """
        done = _Round([call], trip, Patience(self._deadline_s, trip.ends_at))
        self._ask([_Group(address, asking=False, indexes=[0])], done)
        for redirect in done.redirects.values():
            raise store_error(redirect.error, op=trip.op) from redirect.error
        [answer] = done.answers
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def servers(self, trip: Trip) -> list[Address]:
        """Return the servers that together hold all keys.

        Raises:
            StoreError: it cannot be found out.
        """
        try:
            self._topology.find(Patience(self._deadline_s, trip.ends_at))
        except ConnectionLost as error:
            raise store_error(error, op=trip.op) from error
        return self._topology.servers()

    def _by_server(self, done: _Round[T]) -> list[_Group]:
        trip = done.trip
        if trip.lost is None:
            try:
                self._topology.find(done.patience)
            except (ConnectionLost, StoreError) as error:
                trip.lost = _as_store_error(error, trip.op, "")
        if trip.lost is not None:
            done.fail(range(len(done.calls)), trip.lost)
            return []
        groups: dict[Address, _Group] = {}
        for index, call in enumerate(done.calls):
            address = self._topology.address_of(call.key)
            if address is None:
                done.fail([index], StoreUnavailable("no server of the cluster has this key's slot"))
                continue
            group = groups.get(address)
            if group is None:
                group = groups[address] = _Group(address, asking=False)
            group.indexes.append(index)
        return list(groups.values())

    def _redirected(self, done: _Round[T]) -> list[_Group]:
        groups: dict[tuple[Address, bool], _Group] = {}
        for index, (said_by, error) in list(done.redirects.items()):
            address = self._topology.redirected(said_by, str(error))
            asking = error.code == "ASK"
            if address is not None:
                del done.redirects[index]
                groups.setdefault((address, asking), _Group(address, asking)).indexes.append(index)
        return list(groups.values())

    def _ask(self, groups: Sequence[_Group], done: _Round[T]) -> None:
        """Every call of *groups* has an answer or a redirection."""
        with ExitStack() as leases:
            sent: list[tuple[_Group, Wire]] = []
            for group in groups:
                given_up = done.trip.given_up.get(group.address)
                if given_up is not None:
                    done.fail(group.indexes, given_up)
                    continue
                self._give_time(groups, done)
                try:
                    wire = leases.enter_context(self._pool.lease(group.address, done.patience))
                    _send(wire, group, done)
                    sent.append((group, wire))
                except (ConnectionLost, StoreError) as error:
                    self._lose(group, group.indexes, done, error)
            for group, wire in sent:
                self._give_time(groups, done)
                self._receive(wire, group, done)

    def _give_time(self, groups: Sequence[_Group], done: _Round[T]) -> None:
        """One server's silence does not eat up the time of the next; a single one has its time for all steps together."""
        if len(groups) > 1:
            done.patience.renew()

    def _receive(self, wire: Wire, group: _Group, done: _Round[T]) -> None:
        for position, index in enumerate(group.indexes):
            try:
                self._receive_one(wire, group, index, done)
            except ConnectionLost as error:
                self._lose(group, group.indexes[position:], done, error)
                return
            wire.owed -= 1
            done.patience.renew()

    def _receive_one(self, wire: Wire, group: _Group, index: int, done: _Round[T]) -> None:
        try:
            done.answers[index] = done.calls[index].receive(EverySecond(wire) if group.asking else wire)
        except ReplyError as error:
            if error.code in _STALE:
                self._topology.suspect(group.address)
            if error.code in ("MOVED", "ASK"):
                done.redirects[index] = _Redirect(group.address, error)
            else:
                done.fail([index], error)
        except StoreError as error:
            done.answers[index] = error

    def _lose(self, group: _Group, indexes: Sequence[int], done: _Round[T], error: ConnectionLost | StoreError) -> None:
        self._topology.suspect(group.address)
        lost = _as_store_error(error, done.trip.op, "")
        if isinstance(error, StoreError) or error.silent:
            done.trip.given_up[group.address] = lost
        done.fail(indexes, error)


def _send(wire: Wire, group: _Group, done: _Round[T]) -> None:
    """Every call of *group* is on its way; small ones travel together."""
    small: list[bytes] = []
    wire.owed += len(group.indexes)
    for index in group.indexes:
        call = done.calls[index]
        small.append(_with_asking(call) if group.asking else call.head)
        if call.body is not None:
            _send_body(wire, small, call.body)
            done.patience.renew()
        small.append(call.tail)
    wire.send([b"".join(small)])


def _with_asking(call: Call[T]) -> bytes:
    """Return the head of *call* for a server to which the key is on its way: it wants to be told before each command."""
    if call.body is not None:
        return _ASKING + call.head
    told: list[bytes] = []
    start = 0
    while start < len(call.head):
        stop = _stop_of_command(call.head, start)
        told += [_ASKING, call.head[start:stop]]
        start = stop
    return b"".join(told)


def _stop_of_command(head: bytes, start: int) -> int:
    """Return where the command ends that begins at *start*: it says how many words it has, and each how long it is."""
    stop = head.index(b"\r\n", start)
    for _ in range(int(head[start + 1 : stop])):
        begin = stop + len(b"\r\n$")
        stop = head.index(b"\r\n", begin)
        stop += len(b"\r\n") + int(head[begin:stop])
    return stop + len(b"\r\n")


def _send_body(wire: Wire, small: list[bytes], body: ObjectWrite) -> None:
    """What *small* holds and the payload are on their way; *small* holds what comes next then: the tail, if there is one.

    A payload with a tail goes in pieces: the kernel's copy has just brought each into the cache when it is hashed,
    and the server reads it meanwhile.
    """
    if body.tail is None:
        wire.send([b"".join(small), *body.payload])
        small.clear()
        return
    sent = 0
    for piece in _pieces(body.payload):
        wire.send([b"".join(small), *piece])
        small.clear()
        sent += sum(map(len, piece))
        body.tail.advance(sent)
    small.append(body.tail.finish())


def _pieces(payload: Sequence[ReadableBuffer]) -> Iterator[list[memoryview]]:
    """Yield *payload* in groups of buffers, each of `PIECE_NBYTES` but the last."""
    piece: list[memoryview] = []
    room_nbytes = PIECE_NBYTES
    for buffer in payload:
        view = memoryview(buffer).cast("B")
        while view:
            piece.append(view[:room_nbytes])
            view = view[room_nbytes:]
            room_nbytes -= len(piece[-1])
            if room_nbytes == 0:
                yield piece
                piece, room_nbytes = [], PIECE_NBYTES
    if piece:
        yield piece


def _as_store_error(error: Exception, op: str, name: str) -> StoreError:
    """Return *error* for one object; an error that says nothing of an object, such as a refused login, gets its key."""
    if not isinstance(error, StoreError):
        return store_error(error, op=op, key=name)
    if error.key or not name:
        return error
    named = type(error)(Exception.__str__(error), backend=BACKEND, op=op, key=name)
    named.__cause__ = error.__cause__ or error
    return named
