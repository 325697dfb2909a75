"""Objects in a bucket of any S3-compatible service."""

from hicache_storage.backends.s3.options import S3Options
from hicache_storage.backends.s3.store import S3Store

__all__ = ["S3Options", "S3Store"]
