"""The object interface that every backend implements: immutable objects, read in byte ranges.

A backend implements the five abstract methods; everything else is derived from them and may be
overridden for speed. `hicache_storage.testing.StoreContract` proves an implementation,
`hicache_storage.testing.MemoryStore` is the executable specification, and
`docs/backend-guide.md` walks through a complete example.

What a store may take for granted, and what it must keep:

- A key is an opaque, non-empty string that can be encoded as UTF-8. A store knows nothing of layers or heads.
- An object never changes. Whoever sees it sees all of it: a write that fails or is killed
  leaves either the whole object or none, and no reader ever sees a part.
- Every method may be called from any thread at any time, also while `close` runs in another.
- A miss is a return value. A failure raises a `StoreError`. Nothing else is raised on purpose.
- Buffers belong to the caller; a store keeps no reference to them after the call returns,
  also when it raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import ClassVar, Self

from hicache_storage.errors import StoreError, Unsupported
from hicache_storage.types import (
    ALREADY_THERE,
    HIT,
    MISS,
    STORED,
    Capabilities,
    ObjectInfo,
    ObjectWrite,
    Outcome,
    RangeRead,
    ReadableBuffer,
    WritableBuffer,
    WriteResult,
    failed,
)


class ObjectStore(ABC):
    """A place where immutable objects live under string keys.

    A concrete store is constructed with one argument, an instance of its `options_type`
    (a frozen dataclass), so that `hicache_storage.registry.open_store` can build it from
    a URL, a JSON object or the environment.
    """

    name: str
    """The backend's name in errors, metrics and logs."""

    options_type: ClassVar[type]
    """Frozen dataclass of the constructor's options."""

    capabilities: Capabilities
    """What this instance can do."""

    # -- what a backend implements ---------------------------------------------------------

    @abstractmethod
    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        """Store the concatenation of *parts* under *key*, whole or not at all.

        An object that is there already stays as it is if it has the same size: objects are
        named for their content. One of another size is damaged and is replaced. Of several
        writers of one key at once, at least one gets ``STORED`` and the object is whole.

        Raises:
            StoreFull: no room, also after eviction, or larger than the store's capacity.
            StoreUnavailable: no answer; the object may or may not be there.
            Unsupported: the store cannot hold this key or an object of this size.
        """

    @abstractmethod
    def read_into(
        self,
        key: str,
        offset: int,
        targets: Sequence[WritableBuffer],
        *,
        object_nbytes: int | None = None,
    ) -> bool:
        """Fill *targets* in order with the bytes from *offset* on.

        All or nothing: on any result but ``True`` the content of the targets is undefined.
        A range of length 0 is allowed anywhere in ``[0, size of the object]``.

        Args:
            offset: first byte, ``>= 0``.
            targets: writable, C-contiguous buffers; together they define the length.
            object_nbytes: the size the whole object must have; None = any.

        Returns:
            ``False`` if the object does not exist.

        Raises:
            RangeError: the object ends before the range does, or *offset* is negative.
            CorruptObject: the object has another size than *object_nbytes*, or is unreadable.
            StoreUnavailable: no answer within the store's deadline.
        """

    @abstractmethod
    def stat(self, key: str) -> ObjectInfo | None:
        """Return what is known of the object without reading it; ``None`` if it is not there."""

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Remove the object. Afterwards it is not there; the result says whether it was."""

    @abstractmethod
    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with *prefix*, in no particular order.

        Objects written or deleted meanwhile may or may not appear; all others appear exactly
        once. Not for the data path: it may take time in proportion to the whole store.

        Raises:
            Unsupported: the store cannot list (`Capabilities.listing` is False).
        """

    # -- derived, overridden for speed -----------------------------------------------------

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        """Perform *reads*; one outcome each, in request order. One bad object never fails its neighbours.

        Returns:
            ``HIT``, ``MISS`` or a failure for each request.
        """
        return [_outcome_of_read(self, read) for read in reads]

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        """Perform *writes*; ``STORED``, ``ALREADY_THERE`` or a failure for each, in request order."""
        return [_outcome_of_write(self, write) for write in writes]

    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        """Say for each key whether its object is there: ``HIT``, ``MISS`` or a failure."""
        return [_outcome_of_stat(self, key) for key in keys]

    def delete_many(self, keys: Sequence[str]) -> list[Outcome]:
        """Delete each key: ``HIT`` = was there and is gone, ``MISS`` = was not there, or a failure."""
        return [_outcome_of_delete(self, key) for key in keys]

    def touch_many(self, keys: Sequence[str]) -> list[Outcome]:
        """Count each object as used now, where the store evicts by use; else only say whether it is there."""
        return self.exists_many(keys)

    def quarantine(self, key: str) -> bool:
        """Take a damaged object out of use so that its key can be written again.

        A store may keep the bytes aside for a post-mortem, within its capacity; by default
        the object is deleted. A store of several copies takes out the one that was read last, if it
        knows which that was. The result says whether there was one.
        """
        return self.delete(key)

    def register_memory(self, buffer: WritableBuffer) -> None:
        """Announce memory that later transfers will use, for stores that move bytes without copies.

        Once per buffer, before its first use; the buffer must stay alive until `unregister_memory`.
        Stores without `Capabilities.memory_registration` ignore it.
        """

    def unregister_memory(self, buffer: WritableBuffer) -> None:
        """Withdraw what `register_memory` announced; unknown buffers are ignored."""

    def close(self) -> None:
        """Release connections and threads. Calling it again does nothing.

        Operations that run at that moment finish or fail with `StoreUnavailable`; later ones
        raise `StoreUnavailable`.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_key(key: str, capabilities: Capabilities, *, backend: str, op: str) -> bytes:
    """Return *key* as UTF-8.

    Raises:
        Unsupported: the key is empty, cannot be encoded, or is longer than the store allows.
    """
    try:
        encoded = key.encode("utf-8")
    except UnicodeEncodeError:
        reason = f"key {key!r} cannot be encoded as UTF-8"
        raise Unsupported(reason, backend=backend, op=op) from None
    if not encoded:
        raise Unsupported("a key must not be empty", backend=backend, op=op)
    limit = capabilities.max_key_nbytes
    if limit is not None and len(encoded) > limit:
        reason = f"key of {len(encoded)} bytes, this store takes at most {limit}"
        raise Unsupported(reason, backend=backend, op=op, key=key)
    return encoded


def _outcome_of_read(store: ObjectStore, read: RangeRead) -> Outcome:
    try:
        found = store.read_into(read.key, read.offset, read.targets, object_nbytes=read.object_nbytes)
    except StoreError as error:
        return failed(error)
    return HIT if found else MISS


def _outcome_of_write(store: ObjectStore, write: ObjectWrite) -> Outcome:
    try:
        result = store.write(write.key, write.parts)
    except StoreError as error:
        return failed(error)
    return STORED if result is WriteResult.STORED else ALREADY_THERE


def _outcome_of_stat(store: ObjectStore, key: str) -> Outcome:
    try:
        return MISS if store.stat(key) is None else HIT
    except StoreError as error:
        return failed(error)


def _outcome_of_delete(store: ObjectStore, key: str) -> Outcome:
    try:
        return HIT if store.delete(key) else MISS
    except StoreError as error:
        return failed(error)
