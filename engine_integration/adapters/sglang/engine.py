"""Everything that this adapter takes from SGLang, in one place and checked when it is imported."""

from __future__ import annotations

import inspect
import logging
from dataclasses import fields

TESTED_VERSION = "0.5.23"

try:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.mem_cache.hicache_storage import (
        HiCacheStorage,
        HiCacheStorageConfig,
        HiCacheStorageExtraInfo,
        PoolHitPolicy,
        PoolName,
        PoolTransfer,
        PoolTransferResult,
    )
    from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost, MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    from sglang.srt.observability.metrics_collector import StorageMetrics
    from sglang.srt.runtime_context import get_server_args
    from sglang.version import __version__
except ImportError as error:
    raise ImportError(
        f"the SGLang adapter of hicache_storage is made for sglang {TESTED_VERSION}; here its import failed: {error}. "
        f"Install sglang=={TESTED_VERSION}, or an adapter for your version"
    ) from error

__all__ = [
    "TESTED_VERSION",
    "AsymmetricMHATokenToKVPoolHost",
    "HiCacheStorage",
    "HiCacheStorageConfig",
    "HiCacheStorageExtraInfo",
    "MHATokenToKVPoolHost",
    "MLATokenToKVPoolHost",
    "ModelConfig",
    "PoolHitPolicy",
    "PoolName",
    "PoolTransfer",
    "PoolTransferResult",
    "StorageMetrics",
    "check_engine",
    "get_server_args",
]

_FIELDS = {
    HiCacheStorageConfig: {
        "tp_rank",
        "tp_size",
        "pp_rank",
        "pp_size",
        "attn_cp_size",
        "dcp_size",
        "is_mla_model",
        "model_name",
        "extra_config",
        "enable_storage_metrics",
    },
    HiCacheStorageExtraInfo: {"prefix_keys"},
    PoolTransfer: {"name", "host_indices", "keys", "hit_policy", "indices_from_pool"},
    PoolTransferResult: {"kv_hit_pages", "extra_pool_hit_pages", "restorable_prefix_pages"},
    StorageMetrics: {"prefetch_pgs", "backup_pgs", "prefetch_bandwidth", "backup_bandwidth"},
}
_PARAMETERS = {
    "register_mem_pool_host": ["mem_pool_host"],
    "register_mem_host_pool_v2": ["host_pool", "host_pool_name"],
    "on_host_pools_registered": [],
    "batch_exists": ["keys", "extra_info"],
    "batch_exists_v2": ["keys", "pool_transfers", "extra_info"],
    "batch_get_v1": ["keys", "host_indices", "extra_info"],
    "batch_set_v1": ["keys", "host_indices", "extra_info"],
    "batch_get_v2": ["transfers", "extra_info"],
    "batch_set_v2": ["transfers", "extra_info"],
    "get": ["key", "target_location", "target_sizes"],
    "batch_get": ["keys", "target_locations", "target_sizes"],
    "set": ["key", "value", "target_location", "target_sizes"],
    "batch_set": ["keys", "values", "target_locations", "target_sizes"],
    "exists": ["key"],
    "clear": [],
    "get_stats": [],
}

_log = logging.getLogger(__name__)


def check_engine(version: str = __version__) -> None:
    """Refuse an engine whose interface is another one, and warn of a version that was not tested.

    Raises:
        ImportError: a class lacks a field, or a method has other parameters; all of them are named.
    """
    differing = [
        f"{cls.__name__} lacks {', '.join(sorted(lacking))}"
        for cls, wanted in _FIELDS.items()
        if (lacking := wanted - {field.name for field in fields(cls)})
    ]
    for name, wanted in _PARAMETERS.items():
        method = getattr(HiCacheStorage, name, None)
        found = None if method is None else list(inspect.signature(method).parameters)[1:]
        if found != wanted:
            differing.append(f"HiCacheStorage.{name} takes {found}, not {wanted}")
    if differing:
        raise ImportError(
            f"the SGLang adapter of hicache_storage is made for sglang {TESTED_VERSION}; "
            f"sglang {version} differs: {'; '.join(differing)}"
        )
    if version != TESTED_VERSION:
        _log.warning("sglang.version found=%s tested=%s", version, TESTED_VERSION)


check_engine()
