"""The device pool of one rank, in one allocation, and the rows of its slots."""

from __future__ import annotations

import torch
from torch import Tensor

from hicache_storage.kernels import DevicePool


def new_kv_pool(
    *, num_layers: int, num_slots: int, row: tuple[int, int], page_tokens: int, dtype: torch.dtype, device: str = "cpu"
) -> DevicePool:
    """Return a pool of zeros, every byte of it touched, so that first use costs no page faults.

    Args:
        row: heads, and elements of a head, of K and of V each.
    """
    return _stacked((num_layers, 2, num_slots, *row), page_tokens, dtype, device)


def new_latent_pool(
    *, num_layers: int, num_slots: int, row_dim: int, page_tokens: int, dtype: torch.dtype, device: str = "cpu"
) -> DevicePool:
    """Return a pool of latent rows, as `new_kv_pool` does."""
    return _stacked((num_layers, num_slots, 1, row_dim), page_tokens, dtype, device)


def slots_of(page_ids: Tensor, page_tokens: int) -> Tensor:
    """Return the slots of *page_ids* `[P]` in order, `[P * page_tokens]`, int64."""
    within = torch.arange(page_tokens, device=page_ids.device)
    return (page_ids.to(torch.int64)[:, None] * page_tokens + within).reshape(-1)


def store_rows(rows: Tensor, slots: Tensor, new: Tensor) -> None:
    """Put *new* `[S, H, D]` into *slots* of *rows*, a layer of a pool, in the pool's dtype.

    What an 8-bit float cannot hold becomes its largest value: torch would make it NaN.
    """
    if rows.dtype.itemsize == 1:
        limit = torch.finfo(rows.dtype).max
        new = new.clamp(-limit, limit)
    rows[slots] = new.to(rows.dtype)


def rows_of(rows: Tensor, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the rows of *slots* as *dtype*, `[S, H, D]`."""
    return rows[slots].to(dtype)


def _stacked(shape: tuple[int, ...], page_tokens: int, dtype: torch.dtype, device: str) -> DevicePool:
    # By its bytes, since 8-bit floats cannot be filled.
    memory = torch.zeros(*shape, dtype.itemsize, dtype=torch.uint8, device=device).fill_(0)
    return DevicePool.of_stacked(memory.view(dtype).squeeze(-1), page_tokens)
