"""The device pool of one rank: per-layer K and V tensors of shape `[slots, heads, head_dim]`, as engines keep them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVPool:
    """K and V of one rank's layers; entry 0 is the rank's first layer.

    Attributes:
        keys: one tensor `[slots, heads, head_dim]` for each layer, contiguous.
        values: the same for V.
        page_tokens: slots of one page; page `p` is slots `[p * page_tokens, (p + 1) * page_tokens)`.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    page_tokens: int

    @classmethod
    def empty(
        cls, *, num_layers: int, num_pages: int, page_tokens: int, heads: int, head_dim: int, dtype: torch.dtype
    ) -> KVPool:
        """Return a pool of zeros, every byte of it touched, so that first use costs no page faults."""
        shape = (num_pages * page_tokens, heads, head_dim)
        keys, values = (tuple(torch.zeros(shape, dtype=dtype) for _ in range(num_layers)) for _ in range(2))
        for tensor in (*keys, *values):
            tensor.fill_(0)
        return cls(keys, values, page_tokens)

    def slots_of(self, page_ids: Tensor) -> Tensor:
        """Return the slots of *page_ids* `[P]` in order, `[P * page_tokens]`, int64."""
        offsets = torch.arange(self.page_tokens)
        return (page_ids.to(torch.int64)[:, None] * self.page_tokens + offsets).reshape(-1)
