"""Reading: look objects up, transfer their ranges, and make sure that they were the same objects all the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

from hicache_storage.backends.mooncake.buffers import Slot
from hicache_storage.backends.mooncake.engine import Engine
from hicache_storage.backends.mooncake.errors import (
    BACKEND,
    NOT_THERE,
    OK,
    PASSING,
    TRANSFER_FAIL,
    store_error,
    unavailable,
)
from hicache_storage.backends.mooncake.pieces import TAIL, Body, Part, Piece, cut
from hicache_storage.backends.mooncake.sdk import Client, Placement, placements
from hicache_storage.backends.mooncake.workers import Call
from hicache_storage.errors import CorruptObject, RangeError, StoreError
from hicache_storage.types import HIT, MISS, Outcome, RangeRead, ReadableBuffer, failed, nbytes_of

_HAND_OVER_NBYTES = 256 << 10
"""Copied at once, so that whoever hashes the bytes finds them in the CPU's cache."""

_LONGEST_PAUSE_S = 0.05


@dataclass(slots=True)
class Reading:
    """The requests of one call that are still open, by index, and what the last look-up said of their objects."""

    requests: dict[int, RangeRead]
    names: dict[int, str]
    outcomes: list[Outcome | None]
    seen: dict[str, frozenset[Placement]] = field(default_factory=dict)
    again: bool = False

    def settle(self, index: int, outcome: Outcome) -> None:
        self.outcomes[index] = outcome

    def open(self) -> list[int]:
        return [index for index in self.requests if self.outcomes[index] is None]

    def fail(self, index: int, error: StoreError) -> None:
        self.settle(index, failed(error))


class Reader:
    """Performs reads on the thread that calls it."""

    def __init__(self, engine: Engine, *, direct: bool) -> None:
        self._engine = engine
        self._direct = direct

    def read(self, call: Call, requests: dict[int, RangeRead], names: dict[int, str]) -> None:
        """The outcomes of *requests* are set in *call*, unless it is abandoned before.

        An object that was removed, replaced or evicted while it was read is looked up again.

        Raises:
            StoreUnavailable: the master does not answer.
        """
        reading = Reading(requests, names, call.outcomes)
        pause_s = 0.0005
        client = self._engine.client("read", call.ends_at)
        while reading.open() and call.wanted:
            self._look_up(client, reading)
            self._transfer_all(client, call, reading)
            reading.again = True
            if reading.open():
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _look_up(self, client: Client, reading: Reading) -> None:
        """Settle what needs no transfer; note where the rest lies."""
        indexes = reading.open()
        reading.seen = placements(client, list({reading.names[index]: None for index in indexes}))
        absent = [index for index in indexes if reading.names[index] not in reading.seen]
        if absent:
            # The look-up says nothing of why an object is not there; the master may not have answered.
            for index, code in zip(absent, client.batch_is_exist([reading.names[i] for i in absent]), strict=True):
                if code == 0 or code in NOT_THERE:
                    reading.settle(index, MISS)
                elif code < 0:
                    reading.fail(index, store_error(code, op="read", key=reading.requests[index].key))
        for index in indexes:
            copies = reading.seen.get(reading.names[index])
            if copies is None:
                continue
            request = reading.requests[index]
            error = _size_error(request, next(iter(copies)).nbytes - len(TAIL))
            if error is not None:
                reading.fail(index, error)
            elif request.nbytes == 0:
                reading.settle(index, HIT)

    def _transfer_all(self, client: Client, call: Call, reading: Reading) -> None:
        by_endpoint: dict[str, list[int]] = {}
        for index in reading.open():
            copies = reading.seen.get(reading.names[index])
            if copies is not None:
                endpoint = min(copy.endpoint for copy in copies)
                by_endpoint.setdefault(endpoint, []).append(index)
        for endpoint, indexes in by_endpoint.items():
            with self._engine.peers.transfer(endpoint, call.ends_at) as admitted:
                if admitted and call.wanted:
                    self._transfer(client, call, reading, endpoint, indexes)
                elif call.wanted:
                    for index in indexes:
                        reason = f"the node {endpoint} does not answer"
                        reading.fail(index, unavailable(reason, op="read", key=reading.requests[index].key))

    def _transfer(self, client: Client, call: Call, reading: Reading, endpoint: str, indexes: list[int]) -> None:
        """Settle the reads of objects on one node, but leave those open whose objects changed meanwhile."""
        if reading.again:
            _take_back(call, reading, indexes)
        filled = dict.fromkeys(indexes, 0)
        bodies = [Body(index, reading.requests[index].offset, reading.requests[index].targets) for index in indexes]
        names = {reading.names[index] for index in indexes}
        with self._engine.slot("read", call.ends_at) as slot, self._engine.session(client, names) as in_session:
            direct = self._engine.direct_address if self._direct and self._engine.peers.lively(endpoint) else _never
            for piece in cut(bodies, slot.nbytes, slot.address, direct):
                if not call.wanted:
                    return
                with call.caller_memory() if piece.direct_nbytes else nullcontext():
                    codes = _get(client, reading, piece, in_session)
                self._engine.peers.answered(endpoint, well=OK in codes.values())
                for index in codes.keys() - self._unchanged(client, reading, codes):
                    filled.pop(index, None)
                self._hand_over(call, reading, slot, piece, filled)
        for index in filled:
            reading.settle(index, HIT)

    def _unchanged(self, client: Client, reading: Reading, codes: dict[int, int]) -> set[int]:
        """Return the requests whose bytes came from where their objects still are; settle those that failed.

        Whatever has just vanished is looked up again, for it may have been replaced. Another object may have
        taken its place in the node's memory while it was read, also where the transfer went well.
        """
        came = []
        for index, code in codes.items():
            if code == OK:
                came.append(index)
            elif code not in PASSING | NOT_THERE and reading.outcomes[index] is None:
                reading.fail(index, store_error(code, op="read", key=reading.requests[index].key))
        now = placements(client, list({reading.names[index]: None for index in came})) if came else {}
        unchanged = set()
        for index in came:
            name = reading.names[index]
            if not reading.seen[name].isdisjoint(now.get(name, frozenset())):
                unchanged.add(index)
        return unchanged

    def _hand_over(self, call: Call, reading: Reading, slot: Slot, piece: Piece, filled: dict[int, int]) -> None:
        """What came is in the caller's memory, and the caller's hooks know it."""
        with call.caller_memory():
            for part in piece.parts:
                if part.request in filled:
                    _hand_over_part(slot, part, reading.requests[part.request].on_filled, filled)


def _get(client: Client, reading: Reading, piece: Piece, in_session: set[str]) -> dict[int, int]:
    """Transfer one piece; return `OK` or an error code for each request in it."""
    fast = {index: spans for index, spans in piece.by_request().items() if reading.names[index] in in_session}
    slow = [span for span in piece.spans if span.request not in fast]
    moved = dict.fromkeys(piece.by_request(), 0)
    if fast:
        results = client.batch_get_into_multi_buffer_ranges(
            [reading.names[index] for index in fast],
            [[span.address for span in spans] for spans in fast.values()],
            [[span.nbytes for span in spans] for spans in fast.values()],
            [[span.offset for span in spans] for spans in fast.values()],
        )
        moved |= dict(zip(fast, results, strict=True))
    if slow:
        ranges = client.get_into_ranges(
            [span.address for span in slow],
            [[reading.names[span.request]] for span in slow],
            [[[0]]] * len(slow),
            [[[span.offset]] for span in slow],
            [[[span.nbytes]] for span in slow],
        )
        for span, [[nbytes]] in zip(slow, ranges, strict=True):
            moved[span.request] = nbytes if nbytes < 0 else moved[span.request] + nbytes
    wanted = {index: sum(span.nbytes for span in spans) for index, spans in piece.by_request().items()}
    return {
        index: OK if nbytes == wanted[index] else nbytes if nbytes < 0 else TRANSFER_FAIL
        for index, nbytes in moved.items()
    }


def _take_back(call: Call, reading: Reading, indexes: list[int]) -> None:
    """The callers' hooks know that what they were told of a first attempt is no longer in place."""
    with call.caller_memory():
        for index in indexes:
            on_filled = reading.requests[index].on_filled
            if on_filled is not None:
                on_filled(0)


def _never(buffer: ReadableBuffer) -> None:
    """Let no buffer be touched by the SDK."""


def _hand_over_part(slot: Slot, part: Part, on_filled: Callable[[int], None] | None, filled: dict[int, int]) -> None:
    nbytes = nbytes_of(part.buffer)
    for start in range(0, nbytes, _HAND_OVER_NBYTES):
        length = min(_HAND_OVER_NBYTES, nbytes - start)
        if part.at is not None:
            slot.drain(part.at + start, part.buffer, start, length)
        filled[part.request] += length
        if on_filled is not None:
            on_filled(filled[part.request])


def _size_error(request: RangeRead, nbytes: int) -> StoreError | None:
    if request.object_nbytes is not None and nbytes != request.object_nbytes:
        reason = f"the object has {nbytes} bytes instead of {request.object_nbytes}"
        return CorruptObject(reason, backend=BACKEND, op="read", key=request.key)
    stop = request.offset + request.nbytes
    if request.offset < 0 or stop > nbytes:
        reason = f"bytes [{request.offset}, {stop}) of an object of {nbytes} bytes"
        return RangeError(reason, backend=BACKEND, op="read", key=request.key)
    return None
