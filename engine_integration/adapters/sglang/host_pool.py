"""SGLang's host pools of K and V or latent rows: what they are, and their tensors as the relayout wants them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeGuard

import torch
from torch import Tensor

from hicache_storage.engine_integration.adapters.sglang.engine import (
    AsymmetricMHATokenToKVPoolHost,
    MHATokenToKVPoolHost,
    MLATokenToKVPoolHost,
)
from hicache_storage.engine_integration.adapters.sglang.facts import PoolFacts
from hicache_storage.errors import LayoutError
from hicache_storage.kernels.relayout import EngineHostPool
from hicache_storage.kernels.relayout.host_pool import has_slots
from hicache_storage.layout.host_pool_layout import HOST_AXES, PAGE_UNIFIED

Buffer: TypeAlias = Tensor | tuple[Tensor, Tensor]


class HostPool(Protocol):
    """What this adapter asks of any host pool. A page is *page_size* slots, and begins at a multiple of them."""

    layout: str
    page_size: int
    dtype: torch.dtype
    kv_buffer: Buffer

    def get_data_page(self, index: int, flat: bool = True) -> Tensor:
        """Return the page that begins at slot *index* as one flat tensor."""
        ...

    def set_from_flat_data_page(self, index: int, data_page: Tensor) -> None:
        """Fill the page that begins at slot *index*."""
        ...

    def get_dummy_flat_data_page(self) -> Tensor:
        """Return memory for a page."""
        ...


class KVHostPool(HostPool, Protocol):
    """A pool of K and V, or of latent rows *kv_cache_dim* wide; an MLA pool has neither heads nor their widths."""

    page_num: int
    start_layer: int
    layer_num: int
    target_layer_num: int
    head_num: int
    head_dim: int
    v_head_dim: int
    kv_cache_dim: int


def is_kv_pool(pool: HostPool) -> TypeGuard[KVHostPool]:
    """Return whether *pool* holds plain K and V or latent rows, in a layout that is known here.

    Subclasses keep more beside the rows, or keep them otherwise; a pool without memory only counts slots.
    """
    is_known = type(pool) in {MHATokenToKVPoolHost, AsymmetricMHATokenToKVPoolHost, MLATokenToKVPoolHost}
    return is_known and pool.kv_buffer is not None and pool.layout in {*HOST_AXES, PAGE_UNIFIED}


def facts_of(pool: KVHostPool) -> PoolFacts:
    """Return *pool* as integers and names."""
    if isinstance(pool, MLATokenToKVPoolHost):
        heads, head_dim, v_head_dim = 0, pool.kv_cache_dim, 0
    else:
        heads, head_dim, v_head_dim = pool.head_num, pool.head_dim, pool.v_head_dim
    return PoolFacts(
        layout=pool.layout,
        dtype=str(pool.dtype).removeprefix("torch."),
        page_tokens=pool.page_size,
        num_pages=pool.page_num,
        heads=heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        start_layer=pool.start_layer,
        target_layers=pool.target_layer_num,
        draft_layers=pool.layer_num - pool.target_layer_num,
    )


@dataclass(frozen=True, slots=True)
class TensorForm:
    """How some layers of a pool, or of one page that was taken out of it, are read from its tensors."""

    pool: PoolFacts
    layers: range

    def view(self, buffer: Buffer) -> EngineHostPool:
        """Return the layers in *buffer*, which has the axes of the pool's ``kv_buffer``; owns nothing.

        Raises:
            LayoutError: the buffer is no such thing.
        """
        name, keys, values = self.pool.layout, buffer, None
        if name == PAGE_UNIFIED:
            # Seen head group by head group, these are the axes of page_first_direct with other distances.
            name, (keys, values) = "page_first_direct", self._of_page_unified(_tensor(buffer))
        elif not self.pool.is_mla:
            keys, values = buffer[0], buffer[1]
        v_rows = None if values is None else self._chosen(name, values)
        return EngineHostPool(name, self._chosen(name, _tensor(keys)), v_rows, self.pool.page_tokens)

    def one_page(self, flat: Tensor, whole: Buffer) -> EngineHostPool:
        """Return the layers in *flat*, a page that SGLang took out of the pool whose buffer is *whole*.

        Raises:
            LayoutError: *flat* has another size.
        """
        pool = _tensor(whole)
        shape = self._page_shape(pool)
        if flat.nbytes != shape.numel() * pool.element_size() or not flat.is_contiguous():
            raise LayoutError(f"a page of {flat.nbytes} bytes where the pool has pages of {list(shape)}")
        return self.view(flat.view(torch.uint8).view(pool.dtype).view(shape))

    def _page_shape(self, whole: Tensor) -> torch.Size:
        shape = list(whole.shape)
        if self.pool.layout == PAGE_UNIFIED:
            shape[0] = 1
        else:
            axes = HOST_AXES[self.pool.layout]
            axis = axes.index("page") + (0 if self.pool.is_mla else 1)
            shape[axis] = self.pool.page_tokens if has_slots(self.pool.layout) else 1
        return torch.Size(shape)

    def _chosen(self, name: str, tensor: Tensor) -> Tensor:
        if len(self.layers) == self.pool.layers:
            return tensor
        axes = [axis for axis in HOST_AXES[name] if axis != "token" or not has_slots(name)]
        return tensor.narrow(axes.index("layer"), self.layers.start, len(self.layers))

    def _of_page_unified(self, buffer: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.pool.is_mla:
            return buffer.unsqueeze(3), None
        if buffer.shape[1] != 1:
            raise LayoutError(
                f"a page_unified pool of {buffer.shape[1]} head groups serves objects of just these groups: "
                f"head_partition = {buffer.shape[5]}"
            )
        return buffer[:, 0, :, 0], buffer[:, 0, :, 1]


def _tensor(buffer: Buffer) -> Tensor:
    """Return the one tensor of a pool.

    Raises:
        LayoutError: K and V, of different widths, lie in two.
    """
    if isinstance(buffer, Tensor):
        return buffer
    raise LayoutError("SGLang takes no single pages out of a pool whose K and V rows differ in width")
