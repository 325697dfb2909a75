"""Objects in the memory of Mooncake store nodes, shared by every worker that reaches their master."""

from hicache_storage.backends.mooncake.options import MooncakeOptions
from hicache_storage.backends.mooncake.store import MooncakeStore

__all__ = ["MooncakeOptions", "MooncakeStore"]
