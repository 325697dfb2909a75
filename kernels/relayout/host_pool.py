"""The tensors of an engine's host pool, seen with the axes that page_unified has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from hicache_storage.errors import LayoutError
from hicache_storage.layout.host_pool_layout import HOST_AXES, check_host_layout

_VIEW_AXES = ("page", "layer", "token", "head")


@dataclass(frozen=True, slots=True)
class EngineHostPool:
    """An engine's host pool; owns nothing.

    The axes of a tensor are those of `HOST_AXES` and, last, the elements of a row. The layouts layer_first and
    page_first have one axis of token slots where `HOST_AXES` says page and token. Source: SGLang 0.5.23's
    ``MHATokenToKVPoolHost``, ``AsymmetricMHATokenToKVPoolHost`` and ``MLATokenToKVPoolHost``:

        layout              K, and V behind it or apart               MLA
        layer_first         [layers, slots, heads, dim]               [layers, slots, 1, dim]
        page_first          [slots, layers, heads, dim]               [slots, layers, 1, dim]
        page_first_direct   [pages, layers, page_tokens, heads, dim]  [pages, layers, page_tokens, 1, dim]
        page_head           [pages, heads, page_tokens, layers, dim]  -

    Attributes:
        layout_name: a key of `HOST_AXES`.
        keys: K rows, for MLA the latent rows; any dtype, the elements of a row adjoin.
        values: V rows; None for MLA.
        page_tokens: page p is the slots ``[p * page_tokens, (p + 1) * page_tokens)``.
    """

    layout_name: str
    keys: Tensor
    values: Tensor | None
    page_tokens: int

    def __post_init__(self) -> None:
        values = self.keys if self.values is None else self.values
        equal_widths = self.keys.shape[-1:] == values.shape[-1:]
        check_host_layout(self.layout_name, is_mla=self.values is None, equal_widths=equal_widths)
        if self.page_tokens < 1:
            raise LayoutError(f"pages of {self.page_tokens} tokens hold nothing")
        for tensor in (self.keys, values):
            _check_tensor(tensor, self)
        if values.shape[:-1] != self.keys.shape[:-1] or values.dtype != self.keys.dtype:
            raise LayoutError(f"K is {_described(self.keys)}, V is {_described(values)}: they hold different rows")

    @classmethod
    def of(cls, layout_name: str, kv_buffer: Tensor | tuple[Tensor, Tensor], *, page_tokens: int, is_mla: bool) -> Self:
        """Return the pool of an engine's ``kv_buffer``: one tensor, or K and V of different widths in two.

        Raises:
            LayoutError: the tensors are not such a pool.
        """
        if is_mla:
            if not isinstance(kv_buffer, Tensor):
                raise LayoutError("an MLA pool is one tensor")
            return cls(layout_name, kv_buffer, None, page_tokens)
        if len(kv_buffer) != 2:
            raise LayoutError(f"a pool of K and V has two halves, got {len(kv_buffer)}")
        return cls(layout_name, kv_buffer[0], kv_buffer[1], page_tokens)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """K and V, for MLA the latent rows, as views `[page, layer, token, head, dim]`."""
        tensors = (self.keys,) if self.values is None else (self.keys, self.values)
        return tuple(self._by_page(tensor) for tensor in tensors)

    def _by_page(self, tensor: Tensor) -> Tensor:
        axes = HOST_AXES[self.layout_name]
        if has_slots(self.layout_name):
            slots = axes.index("page")
            tensor = torch.unflatten(tensor, slots, (-1, self.page_tokens))
        return tensor.permute(*(axes.index(axis) for axis in _VIEW_AXES), 4)


def has_slots(layout_name: str) -> bool:
    """Return whether page and token are one axis, because tokens of neighbouring pages follow each other."""
    axes = HOST_AXES[layout_name]
    return axes.index("token") == axes.index("page") + 1


def _check_tensor(tensor: Tensor, pool: EngineHostPool) -> None:
    axes = HOST_AXES[pool.layout_name]
    slots = has_slots(pool.layout_name)
    if tensor.ndim != (4 if slots else 5):
        raise LayoutError(f"a tensor of {pool.layout_name} has {4 if slots else 5} axes, got {_described(tensor)}")
    if tensor.device.type != "cpu":
        raise LayoutError(f"the pool lies on {tensor.device}: host layouts are copied in host memory")
    if tensor.shape[-1] < 1 or tensor.stride(-1) != 1:
        raise LayoutError(f"the elements of a row must adjoin, got strides {tensor.stride()}")
    tokens = tensor.shape[axes.index("page" if slots else "token")]
    if tokens % pool.page_tokens if slots else tokens != pool.page_tokens:
        raise LayoutError(
            f"{_described(tensor)} has no pages of {pool.page_tokens} tokens in layout {pool.layout_name}"
        )
    if pool.values is None and tensor.shape[-2] != 1:
        raise LayoutError(f"an MLA pool has one row a token, got {_described(tensor)}")


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
