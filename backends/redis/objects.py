"""Groups of objects that travel together: what is asked, in which order, and what the answers come to.

A group is what one thread has on the way at once. Every method returns one outcome for each of its items. Items
are named tuples: there is one for every object, and a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hicache_storage.backends.redis.commands import (
    Found,
    Read,
    SetCommand,
    Touch,
    encode,
    look,
    plan_read,
    receive_flag,
    receive_look,
    receive_set,
    receive_size,
    strlen,
)
from hicache_storage.backends.redis.exchange import Call, Exchange, Trip
from hicache_storage.backends.redis.large import LargeObjects, restless
from hicache_storage.errors import StoreError
from hicache_storage.types import (
    ALREADY_THERE,
    HIT,
    MISS,
    STORED,
    ObjectWrite,
    Outcome,
    RangeRead,
    Status,
    WriteResult,
    failed,
)

_LOOK_FIRST_NBYTES = 32 << 10
"""From this size on a write asks whether the object is there before it sends it: a round trip costs less."""

_TRIES = 4


class Place(NamedTuple):
    """One object of a group: its position in the batch, its key, and its Redis key."""

    position: int
    name: str
    key: bytes


class ReadItem(NamedTuple):
    """One read of a group."""

    place: Place
    read: RangeRead
    nbytes: int


class WriteItem(NamedTuple):
    """One write of a group."""

    place: Place
    write: ObjectWrite
    nbytes: int


class Objects:
    """Performs groups of operations. Thread-safe."""

    def __init__(self, exchange: Exchange, large: LargeObjects, chunk_nbytes: int, ttl_ms: int | None) -> None:
        self._exchange = exchange
        self._large = large
        self._chunk_nbytes = chunk_nbytes
        self._ttl_ms = ttl_ms
        self._set_new = SetCommand(ttl_ms, only_if_absent=True)
        self._set_any = SetCommand(ttl_ms, only_if_absent=False)
        self._touch = Touch(ttl_ms)

    def read(self, items: Sequence[ReadItem], trip: Trip) -> list[Outcome]:
        """Return ``HIT``, ``MISS`` or a failure for each read."""
        calls: list[Call[Read]] = []
        for item in items:
            plan = plan_read(item.read, item.nbytes)
            command = plan.command(item.place.key)
            calls.append(Call(item.place.name, item.place.key, command, plan.receive))
        outcomes: dict[int, Outcome] = {}
        unclear: list[ReadItem] = []
        for item, answer in zip(items, self._exchange.all(calls, trip), strict=True):
            if isinstance(answer, StoreError):
                outcomes[item.place.position] = failed(answer)
            elif answer is Read.UNCLEAR:
                unclear.append(item)
            elif answer is Read.CHUNKED:
                outcomes[item.place.position] = self._read_large(item, trip)
            else:
                outcomes[item.place.position] = HIT if answer is Read.HIT else MISS
        for item, found in zip(unclear, self.look([item.place for item in unclear], trip), strict=True):
            outcomes[item.place.position] = _of_an_empty_object(item, found)
        return [outcomes[item.place.position] for item in items]

    def _read_large(self, item: ReadItem, trip: Trip) -> Outcome:
        try:
            return HIT if self._large.read(item.read, item.nbytes, item.place.key, trip) else MISS
        except StoreError as error:
            return failed(error)

    # -- writing -----------------------------------------------------------------------------------

    def write(self, items: Sequence[WriteItem], trip: Trip) -> list[Outcome]:
        """Return ``STORED``, ``ALREADY_THERE`` or a failure for each write."""
        outcomes: dict[int, Outcome] = {}
        large = [item for item in items if item.nbytes > self._chunk_nbytes]
        small = [item for item in items if item.nbytes <= self._chunk_nbytes]
        self._write_small(small, outcomes, trip)
        for item in large:
            outcomes[item.place.position] = self._write_large(item, trip)
        return [outcomes[item.place.position] for item in items]

    def _write_large(self, item: WriteItem, trip: Trip) -> Outcome:
        try:
            result = self._large.write(item.place.name, item.place.key, item.write.parts, trip)
        except StoreError as error:
            return failed(error)
        return STORED if result is WriteResult.STORED else ALREADY_THERE

    def _write_small(self, items: Sequence[WriteItem], outcomes: dict[int, Outcome], trip: Trip) -> None:
        absent = self._not_there_yet(items, outcomes, trip)
        damaged: list[WriteItem] = []
        for _ in range(_TRIES):
            occupied = self._set(absent, self._set_new, outcomes, trip) + self._set(
                damaged, self._set_any, outcomes, trip
            )
            if not occupied:
                return
            absent, damaged = self._sort_out(occupied, outcomes, trip)
        for item in absent + damaged:
            outcomes[item.place.position] = failed(restless(item.place.name, trip))

    def _not_there_yet(self, items: Sequence[WriteItem], outcomes: dict[int, Outcome], trip: Trip) -> list[WriteItem]:
        """Return the items that must be sent: the small ones, and those in whose place no value of their size is."""
        asked = [item for item in items if item.nbytes >= _LOOK_FIRST_NBYTES]
        if not asked or self._none_is_there(asked, trip):
            return list(items)
        to_send = [item for item in items if item.nbytes < _LOOK_FIRST_NBYTES]
        calls = [Call(item.place.name, item.place.key, strlen(item.place.key), receive_size) for item in asked]
        there: list[WriteItem] = []
        for item, nbytes in zip(asked, self._exchange.all(calls, trip), strict=True):
            if isinstance(nbytes, StoreError):
                outcomes[item.place.position] = failed(nbytes)
            elif nbytes == item.nbytes:
                there.append(item)
            else:
                to_send.append(item)
        return to_send + self._gone_of(there, outcomes, trip)

    def _none_is_there(self, items: Sequence[WriteItem], trip: Trip) -> bool:
        """Return whether one question for all keys shows that nothing is there; False = each must be looked at."""
        if not self._exchange.takes_several_keys:
            return False
        keys = [item.place.key for item in items]
        try:
            return not self._exchange.one(Call("", keys[0], encode(b"EXISTS", *keys), receive_flag), trip)
        except StoreError:
            return False

    def _sort_out(
        self, occupied: Sequence[WriteItem], outcomes: dict[int, Outcome], trip: Trip
    ) -> tuple[list[WriteItem], list[WriteItem]]:
        """Look at what was in the way: an outcome where it was the same object.

        Returns:
            The items whose place is free by now, and those in whose place something else is.
        """
        absent: list[WriteItem] = []
        damaged: list[WriteItem] = []
        there: list[WriteItem] = []
        places = [item.place for item in occupied]
        for item, found in zip(occupied, self.look(places, trip), strict=True):
            if isinstance(found, StoreError):
                outcomes[item.place.position] = failed(found)
            elif found is None:
                absent.append(item)
            elif found.nbytes == item.nbytes:
                there.append(item)
            else:
                self._make_way(item, found, trip)
                damaged.append(item)
        return absent + self._gone_of(there, outcomes, trip), damaged

    def _gone_of(self, there: Sequence[WriteItem], outcomes: dict[int, Outcome], trip: Trip) -> list[WriteItem]:
        """Objects that were there live as long as if they had been written; return those that are not any more."""
        for item in there:
            outcomes[item.place.position] = ALREADY_THERE
        if self._ttl_ms is None:
            return []
        touched = self.touch([item.place for item in there], trip)
        return [item for item, outcome in zip(there, touched, strict=True) if outcome.status is Status.MISS]

    def _make_way(self, item: WriteItem, found: Found, trip: Trip) -> None:
        """The chunks of what will be replaced are gone; where that fails the write that follows will fail too."""
        if found.is_chunked:
            try:
                self._large.remove(item.place.name, item.place.key, found, trip)
            except StoreError:
                return

    def _set(
        self, items: Sequence[WriteItem], command: SetCommand, outcomes: dict[int, Outcome], trip: Trip
    ) -> list[WriteItem]:
        """Send objects; return those in whose place something was."""
        calls = [
            Call(
                item.place.name,
                item.place.key,
                command.head(item.place.key, item.nbytes),
                receive_set,
                item.write,
                command.tail,
            )
            for item in items
        ]
        occupied: list[WriteItem] = []
        for item, stored in zip(items, self._exchange.all(calls, trip), strict=True):
            if isinstance(stored, StoreError):
                outcomes[item.place.position] = failed(stored)
            elif stored:
                outcomes[item.place.position] = STORED
            else:
                occupied.append(item)
        return occupied

    # -- the rest ------------------------------------------------------------------------------------

    def look(self, places: Sequence[Place], trip: Trip) -> list[Found | StoreError | None]:
        """Return what lies in each place."""
        calls: list[Call[Found | None]] = [
            Call(place.name, place.key, look(place.key), receive_look) for place in places
        ]
        return self._exchange.all(calls, trip)

    def exists(self, places: Sequence[Place], trip: Trip) -> list[Outcome]:
        """Return ``HIT``, ``MISS`` or a failure for each place."""
        return self._flags(places, lambda place: encode(b"EXISTS", place.key), trip)

    def delete(self, places: Sequence[Place], trip: Trip) -> list[Outcome]:
        """Return ``HIT`` where something was and is gone, ``MISS`` where nothing was, or a failure."""
        outcomes: dict[int, Outcome] = {}
        values: list[Place] = []
        for place, found in zip(places, self.look(places, trip), strict=True):
            if isinstance(found, StoreError):
                outcomes[place.position] = failed(found)
            elif found is None:
                outcomes[place.position] = MISS
            elif found.is_chunked:
                outcomes[place.position] = self._until_done(self._large.remove, place, found, trip)
            else:
                values.append(place)
        removed = self._flags(values, lambda place: encode(b"UNLINK", place.key), trip)
        for place, outcome in zip(values, removed, strict=True):
            outcomes[place.position] = outcome
        return [outcomes[place.position] for place in places]

    def touch(self, places: Sequence[Place], trip: Trip) -> list[Outcome]:
        """Return ``HIT`` where something is, which counts as used now and lives on, ``MISS``, or a failure."""
        command = self._touch
        calls = [Call(place.name, place.key, command.command(place.key), command.receive) for place in places]
        outcomes: dict[int, Outcome] = {}
        unclear: list[Place] = []
        for place, answer in zip(places, self._exchange.all(calls, trip), strict=True):
            if isinstance(answer, StoreError):
                outcomes[place.position] = failed(answer)
            elif answer is Read.CHUNKED or answer is Read.UNCLEAR:
                unclear.append(place)
            else:
                outcomes[place.position] = HIT if answer is Read.HIT else MISS
        for place, found in zip(unclear, self.look(unclear, trip), strict=True):
            if isinstance(found, StoreError):
                outcomes[place.position] = failed(found)
            else:
                outcomes[place.position] = self._until_done(self._large.touch, place, found, trip)
        return [outcomes[place.position] for place in places]

    def _until_done(
        self, change: Callable[[str, bytes, Found, Trip], bool], place: Place, found: Found | None, trip: Trip
    ) -> Outcome:
        """Run *change* on an object with chunks, anew if another one has taken its place meanwhile."""
        try:
            for _ in range(_TRIES):
                if found is None:
                    return MISS
                if change(place.name, place.key, found, trip):
                    return HIT
                found = self._large.found(place.name, place.key, trip)
        except StoreError as error:
            return failed(error)
        return failed(restless(place.name, trip))

    def _flags(self, places: Sequence[Place], command: Callable[[Place], bytes], trip: Trip) -> list[Outcome]:
        calls = [Call(place.name, place.key, command(place), receive_flag) for place in places]
        return [
            failed(answer) if isinstance(answer, StoreError) else HIT if answer else MISS
            for answer in self._exchange.all(calls, trip)
        ]


def _of_an_empty_object(item: ReadItem, found: Found | StoreError | None) -> Outcome:
    """Return the outcome of a read that met no bytes. What is there by now, but was not then, was not there."""
    if isinstance(found, StoreError):
        return failed(found)
    wrong = found.wrong_for(item.read, item.nbytes) if found is not None and found.nbytes == 0 else None
    return MISS if wrong is None else failed(wrong)
