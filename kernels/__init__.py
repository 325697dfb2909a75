"""Moving KV between device pools and page_unified host pages. Needs torch; triton only on a GPU.

`gather_pages` fills host pages from an engine's pool, `scatter_pages` the pool from host pages; `explain` says which
implementation would run and why. `README.md` of each operation's folder draws what moves.
"""

from hicache_storage.kernels.dispatch import Choice, Impl, explain
from hicache_storage.kernels.gather_pages.launch import gather_pages
from hicache_storage.kernels.page_format import PageFormat
from hicache_storage.kernels.pool import DevicePool
from hicache_storage.kernels.scatter_pages.launch import scatter_pages

__all__ = ["Choice", "DevicePool", "Impl", "PageFormat", "explain", "gather_pages", "scatter_pages"]
