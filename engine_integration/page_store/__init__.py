"""The L3 client: whole pages of one rank, verified, over any object store."""

from hicache_storage.engine_integration.page_store.client import PageStore
from hicache_storage.engine_integration.page_store.descriptor import (
    Descriptor,
    descriptor_key,
    digest_of_descriptor,
    read_descriptor,
)

__all__ = ["Descriptor", "PageStore", "descriptor_key", "digest_of_descriptor", "read_descriptor"]
