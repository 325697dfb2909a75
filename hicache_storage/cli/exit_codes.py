"""What the exit status of `hicache` means; documented in docs/operations.md and tested."""

from __future__ import annotations

from hicache_storage.errors import (
    ConfigError,
    CorruptObject,
    HiCacheError,
    LayoutError,
    RangeError,
    StoreError,
    Unsupported,
)

DONE = 0
MISSING = 1
USAGE = 2
UNREACHABLE = 3
CORRUPT = 4


def of_error(error: HiCacheError) -> int:
    """Return the exit status that stands for *error*."""
    if isinstance(error, (ConfigError, LayoutError, Unsupported)):
        return USAGE
    if isinstance(error, (CorruptObject, RangeError)):
        return CORRUPT
    if isinstance(error, StoreError):
        return UNREACHABLE
    return MISSING
