"""The tensors of a pool as one, so that one call of torch moves all layers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor


class Stack(NamedTuple):
    """The memory from the first byte of the lowest tensor to the last byte of the highest.

    What lies between the tensors belongs to others or to nobody: nothing may touch it, not even to print it. Valid
    as long as the tensors are.

    Attributes:
        memory: uint8, one axis.
        distances: bytes from the start of *memory* to each tensor, int64 on the CPU.
        divisor: divides all distances.
    """

    memory: Tensor
    distances: Tensor
    divisor: int


def stack_of(tensors: Sequence[Tensor]) -> Stack | None:
    """Return *tensors* as one, or ``None`` if their rows or strides differ or they lie in several places of a GPU."""
    first = min(tensors, key=Tensor.data_ptr)
    if len({(tensor.shape[1:], tensor.stride(), tensor.dtype) for tensor in tensors}) > 1:
        return None
    distances = [tensor.data_ptr() - first.data_ptr() for tensor in tensors]
    nbytes = max(distance + _extent_nbytes(tensor) for distance, tensor in zip(distances, tensors, strict=True))
    storage = first.untyped_storage()
    if all(tensor.untyped_storage().data_ptr() == storage.data_ptr() for tensor in tensors):
        start = int(first.storage_offset()) * first.element_size()
        memory = torch.empty(0, dtype=torch.uint8, device=first.device).set_(storage, start, (nbytes,), (1,))
        return Stack(memory, torch.tensor(distances), gcd(*distances))
    if first.device.type != "cpu":
        return None
    # On a CPU tensors of several allocations are places in one address space all the same.
    addressed = (ctypes.c_ubyte * nbytes).from_address(first.data_ptr())
    return Stack(torch.frombuffer(addressed, dtype=torch.uint8), torch.tensor(distances), gcd(*distances))


def _extent_nbytes(rows: Tensor) -> int:
    """Return the bytes from the first of *rows* ``[S, H, D]`` to the last."""
    slots, heads, head_dim = rows.shape
    return ((slots - 1) * int(rows.stride(0)) + heads * head_dim) * rows.element_size()
