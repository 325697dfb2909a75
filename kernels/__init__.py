"""Moving KV between device pools and page_unified host pages. Empty until the kernels land.

Until then the one relayout is `hicache_storage.engine_integration.reference_engine.relayout`, in plain torch.
"""
