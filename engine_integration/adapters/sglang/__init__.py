"""SGLang's ``dynamic`` storage backend on our stores: `HiCacheUnified`. docs/engines.md has the command line."""

from hicache_storage.engine_integration.adapters.sglang.storage import HiCacheUnified

__all__ = ["HiCacheUnified"]
