"""Objects as values of Redis or Valkey: one server, Sentinel or Cluster."""

from hicache_storage.backends.redis.options import RedisOptions
from hicache_storage.backends.redis.store import RedisStore

__all__ = ["RedisOptions", "RedisStore"]
