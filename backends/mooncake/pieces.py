"""How an object lies in Mooncake, and how requests are cut into transfers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hicache_storage.types import ReadableBuffer, WritableBuffer, nbytes_of

TAIL = b"\0"
"""Every stored body ends with this byte, which is not the object's: Mooncake cannot store an empty one."""

DIRECT_MAX_NBYTES = 64 << 20
"""Most bytes of one call: the deadline is looked at between calls."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes ``[offset, offset + nbytes)`` of one stored body that are moved in one transfer.

    Attributes:
        request: index of the request they belong to.
        address: where they are moved to or from.
    """

    request: int
    offset: int
    nbytes: int
    address: int


@dataclass(frozen=True, slots=True)
class Part:
    """One of the caller's buffers, or some of one, that a piece moves.

    Attributes:
        at: where in the slot its bytes are; None if the SDK touches the buffer itself.
    """

    request: int
    buffer: ReadableBuffer
    at: int | None


@dataclass(slots=True)
class Piece:
    """What one call of the SDK moves. Spans and parts are in the order of the requests and of their bytes."""

    spans: list[Span] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    staged_nbytes: int = 0
    direct_nbytes: int = 0

    def by_request(self) -> dict[int, list[Span]]:
        """Return the spans of each request that has some here, in order."""
        spans: dict[int, list[Span]] = {}
        for span in self.spans:
            spans.setdefault(span.request, []).append(span)
        return spans


@dataclass(frozen=True, slots=True)
class Body:
    """A part of one stored body and the caller's buffers that make it up, one after the other."""

    request: int
    offset: int
    buffers: Sequence[ReadableBuffer] | Sequence[WritableBuffer]


def cut(
    bodies: Sequence[Body], slot_nbytes: int, slot_address: int, direct: Callable[[ReadableBuffer], int | None]
) -> list[Piece]:
    """Return pieces that move *bodies*, in order; each uses a slot of *slot_nbytes* at *slot_address* at most once.

    Args:
        direct: returns the address of a buffer that the SDK may touch itself, None for one that goes through the slot.
    """
    cutter = _Cutter(slot_nbytes, slot_address)
    for body in bodies:
        offset = body.offset
        for buffer in body.buffers:
            nbytes = nbytes_of(buffer)
            address = direct(buffer) if nbytes else None
            if address is not None:
                cutter.add_direct(Span(body.request, offset, nbytes, address), buffer)
            elif nbytes:
                cutter.add_staged(body.request, offset, buffer, nbytes)
            offset += nbytes
    return cutter.pieces


class _Cutter:
    def __init__(self, slot_nbytes: int, slot_address: int) -> None:
        self.pieces: list[Piece] = []
        self._slot_nbytes = slot_nbytes
        self._slot_address = slot_address

    def add_direct(self, span: Span, buffer: ReadableBuffer) -> None:
        piece = self._piece()
        if piece.direct_nbytes and piece.direct_nbytes + span.nbytes > DIRECT_MAX_NBYTES:
            piece = self._next()
        piece.spans.append(span)
        piece.parts.append(Part(span.request, buffer, None))
        piece.direct_nbytes += span.nbytes

    def add_staged(self, request: int, offset: int, buffer: ReadableBuffer, nbytes: int) -> None:
        flat = buffer if nbytes <= self._room() else memoryview(buffer).cast("B")
        taken = 0
        while taken < nbytes:
            piece = self._piece() if self._room() else self._next()
            length = min(nbytes - taken, self._room())
            part = flat if length == nbytes else flat[taken : taken + length]
            self._stage(piece, request, offset + taken, part, length)
            taken += length

    def _stage(self, piece: Piece, request: int, offset: int, buffer: ReadableBuffer, nbytes: int) -> None:
        at = piece.staged_nbytes
        piece.parts.append(Part(request, buffer, at))
        piece.staged_nbytes += nbytes
        last = piece.spans[-1] if piece.spans else None
        address = self._slot_address + at
        if (
            last is not None
            and last.request == request
            and last.offset + last.nbytes == offset
            and last.address + last.nbytes == address
        ):
            piece.spans[-1] = Span(request, last.offset, last.nbytes + nbytes, last.address)
        else:
            piece.spans.append(Span(request, offset, nbytes, address))

    def _room(self) -> int:
        return self._slot_nbytes - self._piece().staged_nbytes

    def _piece(self) -> Piece:
        if not self.pieces:
            self._next()
        return self.pieces[-1]

    def _next(self) -> Piece:
        self.pieces.append(Piece())
        return self.pieces[-1]
