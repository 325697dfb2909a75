"""Pluggable L3 storage for the KV cache of LLM servers.

The contract: what a store is (`ObjectStore`), what travels to and from it, what can go wrong, and how a
deployment names one (`open_store`). Importing this loads neither torch nor any backend's SDK.
"""

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
from hicache_storage.registry import open_store
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
