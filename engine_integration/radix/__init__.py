"""The radix tree over logical pages: what is cached, in which tier, and what goes first. Torch-free."""

from hicache_storage.engine_integration.radix.evict import Eviction
from hicache_storage.engine_integration.radix.invariants import check
from hicache_storage.engine_integration.radix.key import Key, reusable_pages
from hicache_storage.engine_integration.radix.node import Node, Pages, Tier
from hicache_storage.engine_integration.radix.results import Insertion, Match
from hicache_storage.engine_integration.radix.transfers import Direction, Transfer, Transfers
from hicache_storage.engine_integration.radix.tree import RadixTree

__all__ = [
    "Direction",
    "Eviction",
    "Insertion",
    "Key",
    "Match",
    "Node",
    "Pages",
    "RadixTree",
    "Tier",
    "Transfer",
    "Transfers",
    "check",
    "reusable_pages",
]
