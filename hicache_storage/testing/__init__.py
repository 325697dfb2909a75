"""What proves a store, shipped for everyone who writes one.

    from hicache_storage.testing.contract import StoreContract     the laws; needs pytest
    from hicache_storage.testing.model import store_machine        any store against the specification; needs hypothesis
    from hicache_storage.testing.memory import MemoryStore         the executable specification; needs nothing
    from hicache_storage.testing.faults import Fault, FaultyStore  scripted faults around any store; needs nothing

This module imports none of them: `MemoryStore` is also a backend, and must not load pytest.
"""
