"""The proof behind every payload: one checksum per block, bound to the object's key.

    payload | block checksums, 8 bytes each | footer, 40 bytes

The footer is ``magic, version, algorithm, reserved, block_nbytes, payload_nbytes, checksum`` and stands
at the very end, so that a reader who knows nothing but the object can find everything. Any range
of whole blocks can be verified alone. Every checksum is seeded with the key: an object that was
copied to another name does not verify. Source: docs/layout-spec.md 5.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import xxhash

from hicache_storage.errors import LayoutError
from hicache_storage.types import ReadableBuffer

Payload: TypeAlias = memoryview | Sequence[memoryview]
"""Flat bytes, in one place or in several that follow each other."""

MAGIC = b"HICACHE\n"
VERSION = 1
ALGORITHM_XXH3_64 = 1
FOOTER_NBYTES = 40
MIN_BLOCK_NBYTES = 4096

_FOOTER = struct.Struct("<8sHHIQQQ")
_CHECKSUM_NBYTES = 8

_hash = xxhash.xxh3_64_intdigest


def block_nbytes(cell_nbytes: int) -> int:
    """Return the checksummed block of a chunk: the fewest whole cells that are at least 4 KiB."""
    return cell_nbytes * -(-MIN_BLOCK_NBYTES // cell_nbytes)


def block_count(payload_nbytes: int, block: int) -> int:
    """Return how many blocks of *block* bytes a payload has; the last may be shorter."""
    return -(-payload_nbytes // block)


def trailer_nbytes(payload_nbytes: int, block: int) -> int:
    """Return the length of the trailer, which follows from the plan alone."""
    return block_count(payload_nbytes, block) * _CHECKSUM_NBYTES + FOOTER_NBYTES


def key_seed(key: str) -> int:
    """Return the seed of every checksum of the object named *key*."""
    return _hash(key.encode("utf-8"))


def build_trailer(key: str, payload: Payload, block: int) -> bytes:
    """Return the trailer of *payload* when it is stored under *key*."""
    return TrailerMaker(key, payload, block).finish()


class BlockHasher:
    """Hashes a range of whole blocks, as far as it is told to; every block once."""

    __slots__ = ("_block", "_done", "_part", "_parts", "_seed", "_whole", "_within", "digests", "nbytes")

    def __init__(self, filled: Payload, block: int, seed: int) -> None:
        self._parts = (filled,) if isinstance(filled, memoryview) else tuple(filled)
        self._whole = self._parts[0] if len(self._parts) == 1 else None
        self.nbytes = sum(part.nbytes for part in self._parts)
        self._block = block
        self._seed = seed
        self._done = 0
        self._part = 0
        self._within = 0
        self.digests: list[int] = []

    def advance(self, nbytes: int) -> None:
        """Hash every block that lies within the first *nbytes* of the range and is not hashed yet; 0 starts over."""
        if nbytes == 0:
            self._done = self._part = self._within = 0
            self.digests.clear()
            return
        whole, block, seed, start = self._whole, self._block, self._seed, self._done
        total = self.nbytes
        nbytes = min(nbytes, total)
        while start < nbytes:
            stop = min(start + block, total)
            if stop > nbytes:
                break
            self.digests.append(self._next(stop - start) if whole is None else _hash(whole[start:stop], seed))
            start = stop
        self._done = start

    def packed(self) -> bytes:
        """Return the checksums of the whole range as they stand in a trailer."""
        if self._done < self.nbytes:
            self.advance(self.nbytes)
        return struct.pack(f"<{len(self.digests)}Q", *self.digests)

    def _next(self, nbytes: int) -> int:
        """Return the checksum of the next *nbytes*, which may lie in several parts."""
        state = xxhash.xxh3_64(seed=self._seed)
        while nbytes:
            piece = self._parts[self._part][self._within : self._within + nbytes]
            state.update(piece)
            nbytes -= piece.nbytes
            self._within += piece.nbytes
            if self._within == self._parts[self._part].nbytes:
                self._part, self._within = self._part + 1, 0
        return state.intdigest()


class TrailerMaker:
    """Makes the trailer of a payload while it is written; a `Tail` of an `ObjectWrite`."""

    __slots__ = ("_block", "_hasher", "_made", "_payload_nbytes", "_seed", "nbytes")

    def __init__(self, key: str, payload: Payload, block: int) -> None:
        self._block = block
        self._seed = key_seed(key)
        self._hasher = BlockHasher(payload, block, self._seed)
        self._payload_nbytes = self._hasher.nbytes
        self.nbytes = trailer_nbytes(self._payload_nbytes, block)
        self._made: bytes | None = None

    def advance(self, nbytes: int) -> None:
        self._hasher.advance(nbytes)

    def finish(self) -> bytes:
        if self._made is None:
            footer = _FOOTER.pack(MAGIC, VERSION, ALGORITHM_XXH3_64, 0, self._block, self._payload_nbytes, 0)
            body = self._hasher.packed() + footer[:-_CHECKSUM_NBYTES]
            self._made = body + _hash(body, self._seed).to_bytes(_CHECKSUM_NBYTES, "little")
        return self._made


@dataclass(frozen=True, slots=True)
class Footer:
    """What the last 40 bytes of an object say; for tools that know only the object."""

    block_nbytes: int
    payload_nbytes: int

    @classmethod
    def parse(cls, tail: ReadableBuffer, object_nbytes: int) -> Footer:
        """Read the footer of an object of *object_nbytes* from its last 40 bytes.

        Raises:
            LayoutError: it is no footer of this format, or its sizes contradict the object's.
        """
        if len(tail) != FOOTER_NBYTES:
            raise LayoutError(f"a footer has {FOOTER_NBYTES} bytes, got {len(tail)}")
        magic, version, algorithm, _, block, payload, _ = _FOOTER.unpack(tail)
        if magic != MAGIC:
            raise LayoutError(f"no trailer: the object ends in {bytes(magic)!r} where {MAGIC!r} is due")
        if (version, algorithm) != (VERSION, ALGORITHM_XXH3_64):
            raise LayoutError(f"trailer version {version}, algorithm {algorithm}: this package reads 1 and 1")
        if not block >= MIN_BLOCK_NBYTES or payload + trailer_nbytes(payload, block) != object_nbytes:
            raise LayoutError(f"blocks of {block} and a payload of {payload} bytes do not fit {object_nbytes} bytes")
        return cls(block, payload)


class RangeVerifier:
    """Hashes a range of whole blocks while it is being filled, then compares it with the trailer.

    `advance` is made for `RangeRead.on_filled`: called or not, `mismatch` hashes what is left.
    """

    __slots__ = ("_block", "_first_block", "_hasher", "_payload_nbytes", "_seed", "advance")

    def __init__(self, key: str, block: int, payload_nbytes: int, first_block: int, filled: Payload) -> None:
        """Verify the blocks from *first_block* on that *filled* will hold."""
        self._seed = key_seed(key)
        self._block = block
        self._payload_nbytes = payload_nbytes
        self._first_block = first_block
        self._hasher = BlockHasher(filled, block, self._seed)
        self.advance = self._hasher.advance

    def mismatch(self, trailer: memoryview) -> str | None:
        """Say what is wrong with the trailer or with the range; None if every byte is as it was written."""
        wrong = _wrong_trailer(trailer, self._payload_nbytes, self._block, self._seed)
        if wrong is not None:
            return wrong
        mine = self._hasher.packed()
        first = self._first_block * _CHECKSUM_NBYTES
        theirs = trailer[first : first + len(mine)]
        if mine == theirs:
            return None
        stored = struct.unpack(f"<{len(theirs) // _CHECKSUM_NBYTES}Q", theirs)
        pairs = zip(self._hasher.digests, stored, strict=True)
        bad = next(index for index, (ours, its) in enumerate(pairs) if ours != its)
        return f"block {self._first_block + bad} of {self._block} bytes does not match its checksum"


def _wrong_trailer(trailer: memoryview, payload_nbytes: int, block: int, seed: int) -> str | None:
    expected = trailer_nbytes(payload_nbytes, block)
    if trailer.nbytes != expected:
        return f"trailer of {trailer.nbytes} bytes where {expected} are due"
    magic, version, algorithm, _, its_block, its_payload, checksum = _FOOTER.unpack(trailer[-FOOTER_NBYTES:])
    if magic != MAGIC or (version, algorithm) != (VERSION, ALGORITHM_XXH3_64):
        return "no trailer of this format behind the payload"
    if (its_block, its_payload) != (block, payload_nbytes):
        return f"trailer of a payload of {its_payload} bytes in blocks of {its_block}, not {payload_nbytes} in {block}"
    if _hash(trailer[:-_CHECKSUM_NBYTES], seed) != checksum:
        return "trailer does not match its own checksum, or belongs to another key"
    return None
