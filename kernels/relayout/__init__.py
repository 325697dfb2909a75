"""Pages between an engine's host pool and page_unified order. Start with README.md."""

from hicache_storage.kernels.relayout.host_pool import EngineHostPool
from hicache_storage.kernels.relayout.launch import from_page_unified, to_page_unified

__all__ = ["EngineHostPool", "from_page_unified", "to_page_unified"]
