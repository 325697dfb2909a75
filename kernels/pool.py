"""The tensors in which an engine keeps its KV, described for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Self

import torch
from torch import Tensor

from hicache_storage.errors import LayoutError
from hicache_storage.kernels.page_format import PageFormat
from hicache_storage.kernels.stack import Stack, stack_of

# torch has no 16-byte integer. Nothing computes with these: indexing and copying keep every bit.
UNIT_DTYPES = {16: torch.complex128, 8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""Units in which bytes move, by their width."""


@dataclass(frozen=True, slots=True, eq=False)
class DevicePool:
    """An engine's KV tensors; owns nothing, and must not outlive them.

    A slot is one token's place; page `p` is the slots ``[p * page_tokens, (p + 1) * page_tokens)``. The heads of
    a slot lie together; from slot to slot the distance may be larger than the row. Make one with `of_layers` or
    `of_stacked`.

    Cost: making one looks at every tensor. Make it once per engine, not per transfer.

    Attributes:
        keys: per layer ``[S, H, Dk]``; for MLA ``[S, 1, D]``.
        values: per layer ``[S, H, Dv]``; empty for MLA.
        page_tokens: slots of a page.
        num_pages: whole pages that every layer has room for.
        alignment: 16, 8, 4, 2 or 1: bytes that divide every address, row and distance between slots.
        addresses: ``[L, 2]`` int64 on the CPU: where each layer's K and V start; twice K for MLA.
        units: all tensors in the order K, V, K, V..., each as ``[S, units]`` of the width `alignment`.
        stack: the same tensors in the same order as one, if that can be.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    page_tokens: int
    num_pages: int = field(init=False)
    alignment: int = field(init=False)
    addresses: Tensor = field(init=False)
    units: tuple[Tensor, ...] = field(init=False)
    stack: Stack | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.page_tokens < 1:
            raise LayoutError(f"page_tokens = {self.page_tokens}, expected 1 or more")
        if self.values and len(self.values) != len(self.keys):
            raise LayoutError(f"a pool with {len(self.keys)} layers of K has {len(self.values)} layers of V")
        _check_alike(self.keys, "K")
        if self.values:
            _check_alike(self.values, "V")
            _check_partner(self.keys[0], self.values[0])
        slots = min(tensor.shape[0] for tensor in self.keys + self.values)
        if slots < self.page_tokens:
            raise LayoutError(f"a pool of {slots} slots has no page of {self.page_tokens} tokens")
        object.__setattr__(self, "num_pages", slots // self.page_tokens)
        self._derive()

    def _derive(self) -> None:
        partners = self.values or self.keys
        table = torch.tensor([[k.data_ptr(), v.data_ptr()] for k, v in zip(self.keys, partners, strict=True)])
        tensors = self.keys if self.is_mla else tuple(t for kv in zip(self.keys, self.values, strict=True) for t in kv)
        alignment = gcd(max(UNIT_DTYPES), *(n for tensor in tensors for n in _byte_places(tensor)))
        unit = UNIT_DTYPES[alignment]
        object.__setattr__(self, "alignment", alignment)
        object.__setattr__(self, "addresses", table)
        object.__setattr__(self, "units", tuple(rows.flatten(1).view(torch.uint8).view(unit) for rows in tensors))
        object.__setattr__(self, "stack", stack_of(tensors))

    @classmethod
    def of_layers(cls, keys: Sequence[Tensor], values: Sequence[Tensor], page_tokens: int) -> Self:
        """Return the pool of per-layer tensors.

        Args:
            keys: per layer ``[S, H, Dk]``; for MLA ``[S, 1, D]`` or ``[S, D]``.
            values: per layer ``[S, H, Dv]``; empty for MLA.

        Raises:
            LayoutError: the layers differ in row shape, dtype, distance between slots or device, or the heads of a
                slot do not lie together.
        """
        return cls(tuple(map(_as_rows, keys)), tuple(map(_as_rows, values)), page_tokens)

    @classmethod
    def of_stacked(cls, kv: Tensor, page_tokens: int) -> Self:
        """Return the pool of one tensor ``[L, 2, S, H, D]``, for MLA ``[L, S, D]`` or ``[L, S, 1, D]``."""
        if kv.dim() == 5 and kv.shape[1] == 2:
            return cls.of_layers(kv[:, 0].unbind(), kv[:, 1].unbind(), page_tokens)
        if kv.dim() == 3 or (kv.dim() == 4 and kv.shape[2] == 1):
            return cls.of_layers(kv.unbind(), (), page_tokens)
        raise LayoutError(f"a stacked pool is [L, 2, S, H, D] or [L, S, 1, D], got {list(kv.shape)}")

    def with_draft(self, draft: DevicePool) -> DevicePool:
        """Return this pool with the layers of *draft* appended.

        Raises:
            LayoutError: the draft's rows, dtype, device, page size or distance between slots are others.
        """
        if draft.page_tokens != self.page_tokens:
            raise LayoutError(f"draft pages have {draft.page_tokens} tokens, the pool's {self.page_tokens}")
        if draft.is_mla != self.is_mla:
            raise LayoutError(
                f"the draft has {len(draft.values)} layers of V for {draft.num_layers} of K, "
                f"the pool {len(self.values)} for {self.num_layers}"
            )
        return DevicePool(self.keys + draft.keys, self.values + draft.values, self.page_tokens)

    def select_layers(self, layers: range) -> DevicePool:
        """Return the pool of *layers* only; its pages hold those layers alone."""
        check_layers(layers, self.num_layers)
        chosen = slice(layers.start, layers.stop)
        return DevicePool(self.keys[chosen], self.values[chosen], self.page_tokens)

    @property
    def num_layers(self) -> int:
        return len(self.keys)

    @property
    def num_heads(self) -> int:
        """Heads of a slot; 1 for MLA."""
        return self.keys[0].shape[1]

    @property
    def device(self) -> torch.device:
        return self.keys[0].device

    @property
    def is_mla(self) -> bool:
        return not self.values

    @property
    def k_slot_nbytes(self) -> int:
        """Bytes from one slot's K to the next slot's."""
        return _slot_nbytes(self.keys[0])

    @property
    def v_slot_nbytes(self) -> int:
        """Bytes from one slot's V to the next slot's; 0 for MLA."""
        return _slot_nbytes(self.values[0]) if self.values else 0

    def page_format(self, group_heads: int) -> PageFormat:
        """Return the format of the host pages of this pool.

        Args:
            group_heads: heads of a head group; 0 or 1 for MLA.

        Raises:
            LayoutError: the groups do not divide the heads.
        """
        width = group_heads or int(self.is_mla)
        if width < 1 or self.num_heads % width:
            raise LayoutError(f"{self.num_heads} heads are not made of groups of {group_heads}")
        return PageFormat(
            groups=self.num_heads // width,
            layers=self.num_layers,
            page_tokens=self.page_tokens,
            group_heads=width,
            k_head_nbytes=_head_nbytes(self.keys[0]),
            v_head_nbytes=_head_nbytes(self.values[0]) if self.values else 0,
        )


def check_layers(layers: range, num_layers: int) -> None:
    """Raise `LayoutError` unless *layers* is a range of consecutive layers out of *num_layers*, at least one."""
    if layers.step != 1 or not 0 <= layers.start < layers.stop <= num_layers:
        raise LayoutError(f"layers [{layers.start}, {layers.stop}) are not in the pool's [0, {num_layers})")


def _byte_places(rows: Tensor) -> tuple[int, ...]:
    """Return what the width of a unit must divide; torch also wants the tensor to start at a multiple of it."""
    start = int(rows.storage_offset()) * rows.element_size()
    return rows.data_ptr(), start, _slot_nbytes(rows), rows.shape[1] * _head_nbytes(rows)


def _as_rows(tensor: Tensor) -> Tensor:
    """Return *tensor* as ``[S, H, D]`` with the strides that its bytes have, also along axes of size 1."""
    rows = tensor.unsqueeze(1) if tensor.dim() == 2 else tensor
    if rows.dim() != 3 or not rows.numel():
        raise LayoutError(f"a layer of a pool is [S, H, D] with at least one row, got {list(tensor.shape)}")
    slots, heads, head_dim = rows.shape
    together = (head_dim == 1 or rows.stride(2) == 1) and (heads == 1 or rows.stride(1) == head_dim)
    if not together:
        raise LayoutError(f"the heads of a slot do not lie together: shape {[*rows.shape]}, strides {[*rows.stride()]}")
    distance = rows.stride(0) if slots > 1 else heads * head_dim
    if distance < heads * head_dim:
        raise LayoutError(f"slots of {heads * head_dim} elements lie {distance} elements apart")
    return rows.as_strided((slots, heads, head_dim), (distance, head_dim, 1))


def _check_alike(tensors: tuple[Tensor, ...], name: str) -> None:
    if not tensors:
        raise LayoutError(f"a pool has at least one layer, got {len(tensors)} of {name}")
    first = tensors[0]
    for layer, tensor in enumerate(tensors):
        found = (tensor.shape[1:], tensor.dtype, tensor.device, _slot_nbytes(tensor))
        expected = (first.shape[1:], first.dtype, first.device, _slot_nbytes(first))
        if found != expected:
            raise LayoutError(f"{name} of layer {layer} is {_words(tensor)}, of layer 0 {_words(first)}")


def _check_partner(key: Tensor, value: Tensor) -> None:
    if key.shape[1] != value.shape[1] or key.device != value.device:
        raise LayoutError(f"K is {_words(key)}, V is {_words(value)}: their heads or devices differ")


def _words(tensor: Tensor) -> str:
    shape = f"[S, {tensor.shape[1]}, {tensor.shape[2]}]"
    return f"{shape} {tensor.dtype} on {tensor.device}, slots {_slot_nbytes(tensor)} bytes apart"


def _head_nbytes(rows: Tensor) -> int:
    return rows.shape[2] * rows.element_size()


def _slot_nbytes(rows: Tensor) -> int:
    return rows.stride(0) * rows.element_size()
