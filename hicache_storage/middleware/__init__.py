"""Layers around any store, one concern each. `wrap` puts those together that a configuration asks for.

From the caller inwards, and why in this order:

    metrics        sees what the caller sees
    write budget   drops before anything is spent on the write
    read budget    waits before the deadline's clock runs out on I/O
    breaker        counts an operation once, after its retries
    deadline       bounds all attempts together
    retry          repeats what may work later
    guard          bounds one attempt on a store that cannot bound itself
    encryption     every layer above works on plain sizes
    faults         in the store's place: every layer above has to cope
"""

from hicache_storage.middleware.breaker import BreakerLayer
from hicache_storage.middleware.budget import Budget
from hicache_storage.middleware.deadline import DeadlineLayer, GuardLayer
from hicache_storage.middleware.encryption import EncryptionLayer
from hicache_storage.middleware.fault_plan import FaultOptions
from hicache_storage.middleware.faults import FaultLayer
from hicache_storage.middleware.layer import Layer
from hicache_storage.middleware.limit import ReadBudgetLayer, WriteBudgetLayer
from hicache_storage.middleware.metrics import MetricsLayer, StoreMetrics
from hicache_storage.middleware.options import MiddlewareOptions, wrap
from hicache_storage.middleware.parts import ComposedStore, store_counts
from hicache_storage.middleware.retry import RetryLayer

__all__ = [
    "BreakerLayer",
    "Budget",
    "ComposedStore",
    "DeadlineLayer",
    "EncryptionLayer",
    "FaultLayer",
    "FaultOptions",
    "GuardLayer",
    "Layer",
    "MetricsLayer",
    "MiddlewareOptions",
    "ReadBudgetLayer",
    "RetryLayer",
    "StoreMetrics",
    "WriteBudgetLayer",
    "store_counts",
    "wrap",
]
