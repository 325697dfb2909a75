"""What an engine calls: the life of a request's prefix through device, host and store."""

from hicache_storage.engine_integration.controller.controller import Controller
from hicache_storage.engine_integration.controller.pools import (
    BackupCopies,
    CopyJob,
    LoadCopies,
    LoadJob,
    NoCopies,
    Pools,
)
from hicache_storage.engine_integration.controller.request import Admission, CachedTokens
from hicache_storage.engine_integration.controller.store_link import StoreConnection

__all__ = [
    "Admission",
    "BackupCopies",
    "CachedTokens",
    "Controller",
    "CopyJob",
    "LoadCopies",
    "LoadJob",
    "NoCopies",
    "Pools",
    "StoreConnection",
]
