"""The L3 client: whole pages of one rank, verified, over any object store."""

from hicache_storage.engine_integration.page_store.client import PageStore
from hicache_storage.engine_integration.page_store.descriptor import (
    Descriptor,
    descriptor_key,
    digest_of_descriptor,
    read_descriptor,
)
from hicache_storage.engine_integration.page_store.memory import PageRuns, ScatteredPage

__all__ = [
    "Descriptor",
    "PageRuns",
    "PageStore",
    "ScatteredPage",
    "descriptor_key",
    "digest_of_descriptor",
    "read_descriptor",
]
