"""The values that travel between a store and its callers: frozen, slotted, without behaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import Protocol, TypeAlias

from hicache_storage.errors import StoreError

ReadableBuffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes to be stored. C-contiguous; anything that is not flat bytes is passed as ``memoryview(x).cast("B")``."""

WritableBuffer: TypeAlias = bytearray | memoryview
"""Memory to be filled. Writable and C-contiguous; may be page-locked host memory."""


@unique
class WriteResult(Enum):
    """What a successful write found."""

    STORED = "stored"
    ALREADY_THERE = "already_there"


@unique
class Status(Enum):
    """How one request of a batch ended.

    ``HIT`` also means "was there and is deleted" and "was there and is touched".
    """

    HIT = "hit"
    MISS = "miss"
    STORED = "stored"
    ALREADY_THERE = "already_there"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request of a batch ended. True unless it is a miss or a failure.

    A miss (the object is not there) and a failure (could not find out) stay different things:
    ``error`` is set exactly when ``status`` is ``FAILED``.
    """

    status: Status
    error: StoreError | None = None

    def __bool__(self) -> bool:
        return self.status is not Status.MISS and self.status is not Status.FAILED


HIT = Outcome(Status.HIT)
MISS = Outcome(Status.MISS)
STORED = Outcome(Status.STORED)
ALREADY_THERE = Outcome(Status.ALREADY_THERE)


def failed(error: StoreError) -> Outcome:
    """Return the outcome of a request that ended with *error*."""
    return Outcome(Status.FAILED, error)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do. The conformance kit selects its laws by these.

    Attributes:
        ranges: a range read moves about as many bytes as the range has; where False, the
            store answers range reads correctly but fetches whole objects.
        listing: `ObjectStore.list_keys` works; where False it raises `Unsupported`.
        durable: objects survive closing and reopening the store.
        shared: other processes that open the same store see the same objects.
        ttl: objects may vanish by age without anybody deleting them.
        keeps_deadline: every operation ends within a deadline of the store's own, or an outer one
            (`hicache_storage.deadline`), whatever the other side does.
        memory_registration: `ObjectStore.register_memory` makes transfers cheaper.
        max_object_nbytes: largest object that can be stored; None = no limit of its own.
        max_key_nbytes: longest key in UTF-8 bytes; None = no limit of its own.
    """

    ranges: bool = True
    listing: bool = True
    durable: bool = True
    shared: bool = True
    ttl: bool = False
    keeps_deadline: bool = False
    memory_registration: bool = False
    max_object_nbytes: int | None = None
    max_key_nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows of an object without reading it.

    Attributes:
        nbytes: size of the whole object, its trailer included.
        modified_s: seconds since the epoch at which it was stored or, in stores that
            track reads, last used; None where the store does not know.
    """

    key: str
    nbytes: int
    modified_s: float | None = None


@dataclass(frozen=True, slots=True)
class RangeRead:
    """Fill *targets*, one after the other, with bytes ``[offset, offset + sum of their sizes)``.

    Attributes:
        object_nbytes: the size the whole object must have. An object of another size fails
            with `CorruptObject`. None = any size.
        on_filled: called by the store, on whichever thread reads, with the number of leading
            bytes of the range that are in place, in growing order; it lets the caller hash bytes
            while they are in the CPU's cache. A hint: a store may call it never, and a caller
            must not rely on it. Whoever fills the range a second time, to retry, calls it with 0
            before. It must not raise.
    """

    key: str
    offset: int
    targets: Sequence[WritableBuffer]
    object_nbytes: int | None = None
    on_filled: Callable[[int], None] | None = None

    @property
    def nbytes(self) -> int:
        return sum(nbytes_of(target) for target in self.targets)


class Tail(Protocol):
    """The last part of an object, made from the parts before it while those are on their way.

    A store that writes in pieces calls `advance` after each, so that they are hashed while they are in the
    CPU's cache; one that does not simply takes `ObjectWrite.parts`.
    """

    @property
    def nbytes(self) -> int:
        """Its size, known before its content is."""

    def advance(self, nbytes: int) -> None:
        """Take note that the first *nbytes* of the payload have just been read by the store. A hint."""

    def finish(self) -> bytes:
        """Return the part; the same every time."""


@dataclass(frozen=True, slots=True)
class ObjectWrite:
    """Store the concatenation of `parts` under *key*. The buffers stay the caller's.

    Attributes:
        payload: the parts that exist.
        tail: makes the last part; None = there is none.
    """

    key: str
    payload: Sequence[ReadableBuffer]
    tail: Tail | None = None

    @property
    def parts(self) -> Sequence[ReadableBuffer]:
        """All parts, the tail included."""
        return self.payload if self.tail is None else [*self.payload, self.tail.finish()]

    @property
    def nbytes(self) -> int:
        return sum(nbytes_of(part) for part in self.payload) + (0 if self.tail is None else self.tail.nbytes)


def nbytes_of(buffer: ReadableBuffer) -> int:
    """Return the size of *buffer* in bytes, whatever its item format is."""
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)
