"""Pluggable L3 storage for the KV cache of LLM servers.

The contract: what a store is (`ObjectStore`), what travels to and from it, what can go wrong, and how a
deployment names one (`open_store`). Importing this loads neither torch nor any backend's SDK.
"""

from typing import TYPE_CHECKING

from hicache_storage.errors import (
    AccessDenied,
    ConfigError,
    CorruptObject,
    HiCacheError,
    InvariantError,
    LayoutError,
    RangeError,
    RankFailure,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TierFull,
    Unsupported,
)
from hicache_storage.store import ObjectStore
from hicache_storage.types import (
    Capabilities,
    ObjectInfo,
    ObjectWrite,
    Outcome,
    RangeRead,
    Status,
    WriteResult,
)

if TYPE_CHECKING:
    from hicache_storage.registry import open_store

__all__ = [
    "AccessDenied",
    "Capabilities",
    "ConfigError",
    "CorruptObject",
    "HiCacheError",
    "InvariantError",
    "LayoutError",
    "ObjectInfo",
    "ObjectStore",
    "ObjectWrite",
    "Outcome",
    "RangeError",
    "RangeRead",
    "RankFailure",
    "Status",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "TierFull",
    "Unsupported",
    "WriteResult",
    "open_store",
]


if not TYPE_CHECKING:  # a type checker would take every name for one that is here

    def __getattr__(name: str) -> object:
        """Give `open_store`, which is loaded when it is first asked for: all that it needs takes longer than the rest."""
        if name != "open_store":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from hicache_storage.registry import open_store  # noqa: PLC0415 - as said

        globals()[name] = open_store
        return open_store
