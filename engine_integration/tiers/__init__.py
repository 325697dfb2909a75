"""The pages of one tier: whose they are, how many fit, and the host memory they lie in.

`slots` and `sizing` are torch-free; `host`, with the arena itself, loads torch and is imported by its own name.
"""

from hicache_storage.engine_integration.tiers.agreed_size import agree_host_pages
from hicache_storage.engine_integration.tiers.sizing import (
    HostMemory,
    HostSize,
    capacity_tokens,
    common_capacity_tokens,
    read_host_memory,
)
from hicache_storage.engine_integration.tiers.slots import PageAllocator, contiguous_runs

__all__ = [
    "HostMemory",
    "HostSize",
    "PageAllocator",
    "agree_host_pages",
    "capacity_tokens",
    "common_capacity_tokens",
    "contiguous_runs",
    "read_host_memory",
]
