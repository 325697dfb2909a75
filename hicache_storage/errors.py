"""Every exception of the package. This module imports nothing.

    HiCacheError
    ├── ConfigError            an option is wrong: which one, where it came from, what would be right
    ├── StoreError             one operation on one object failed      (backend, op, key, retryable)
    │   ├── StoreUnavailable   unreachable, timed out or throttled     retryable
    │   ├── AccessDenied       credentials or permissions do not allow it
    │   ├── StoreFull          no room, also after eviction
    │   ├── RangeError         the object ends before the requested range does
    │   ├── CorruptObject      the bytes are not those that were written
    │   └── Unsupported        this store cannot do that with this key or at all
    ├── LayoutError            a shard does not fit the agreed grid
    ├── TierFull               no page can be freed
    ├── RankFailure            another rank failed; carries every failing rank's reason
    └── InvariantError         our own books do not add up: a bug

A miss is never an exception. `docs/errors.md` says for each class what causes it and what to do.
"""


class HiCacheError(Exception):
    """Base of everything this package raises on purpose."""


class ConfigError(HiCacheError):
    """An option, a URL, a flag or an environment variable is wrong."""


class StoreError(HiCacheError):
    """One operation on one object failed; other objects are not affected.

    Attributes:
        backend: name of the backend, e.g. ``file``.
        op: the operation of the object interface, e.g. ``read``.
        key: the object's key, or ``""`` when the operation concerns the whole store.
        retryable: whether the same call may succeed later without anybody mending anything.
    """

    retryable = False

    def __init__(self, reason: str, *, backend: str = "", op: str = "", key: str = "") -> None:
        super().__init__(reason)
        self.backend = backend
        self.op = op
        self.key = key

    def __str__(self) -> str:
        where = " ".join(
            f"{name}={value}"
            for name, value in (("backend", self.backend), ("op", self.op), ("key", self.key))
            if value
        )
        reason = super().__str__()
        return f"{reason} ({where})" if where else reason


class StoreUnavailable(StoreError):
    """No answer: unreachable, timed out or throttled."""

    retryable = True


class AccessDenied(StoreError):
    """Credentials or permissions do not allow the operation."""


class StoreFull(StoreError):
    """There is no room for the object, also after eviction."""


class RangeError(StoreError):
    """The object ends before the requested range does."""


class CorruptObject(StoreError):
    """The object is there, but its bytes or its size are not those that were written."""


class Unsupported(StoreError):
    """This store cannot do that, with this key or at all."""


class LayoutError(HiCacheError):
    """A shard, a page or a range does not fit the agreed grid."""


class TierFull(HiCacheError):
    """A tier has no free page and none can be evicted."""


class RankFailure(HiCacheError):
    """At least one rank failed in an agreed step; raised on every rank of the group.

    Attributes:
        step: name of the agreed step.
        reasons: failing rank -> why.
    """

    def __init__(self, step: str, reasons: dict[int, str]) -> None:
        self.step = step
        self.reasons = dict(reasons)
        listing = "; ".join(f"rank {rank}: {why}" for rank, why in sorted(self.reasons.items()))
        super().__init__(f"step {step!r} failed on {len(self.reasons)} rank(s): {listing}")


class InvariantError(HiCacheError):
    """Our own books do not add up: a bug in this package."""
