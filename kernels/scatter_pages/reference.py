"""The meaning of a scatter, in plain torch on any device; what runs on a CPU."""

from __future__ import annotations

from hicache_storage.kernels.move import PageMove
from hicache_storage.kernels.views import copies


def scatter_pages_reference(move: PageMove) -> None:
    """Fill the pool of *move* from its host pages."""
    for pool, where, host in copies(move):
        pool.index_copy_(0, where, host)
