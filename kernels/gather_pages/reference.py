"""The meaning of a gather, in plain torch on any device; what runs on a CPU."""

from __future__ import annotations

import torch

from hicache_storage.kernels.move import PageMove
from hicache_storage.kernels.views import copies


def gather_pages_reference(move: PageMove) -> None:
    """Fill the host pages of *move* from its pool."""
    for pool, where, host in copies(move):
        torch.index_select(pool, 0, where, out=host)
