"""SGLang's own host pools for one rank of a model, and their pages by way of SGLang's own flat pages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo, MLABufferInfo
from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost, MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

Rows: TypeAlias = npt.NDArray[np.uint16]
"""A page of K and V ``[layer, K/V, token, head, dim]``, or of latent rows ``[layer, token, dim]``."""

MHA_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head", "page_unified")
MLA_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_unified")
PAGES = 12


@dataclass(frozen=True, slots=True)
class Shape:
    """What a rank's pool holds; *heads* is 0 for MLA, *head_dim* its latent row's width."""

    layers: int
    heads: int
    head_dim: int
    page_tokens: int
    start_layer: int = 0
    draft_layers: int = 0
    v_head_dim: int | None = None
    dtype: torch.dtype = torch.bfloat16

    @property
    def is_mla(self) -> bool:
        return self.heads == 0


def host_pool(shape: Shape, layout: str) -> MHATokenToKVPoolHost | MLATokenToKVPoolHost:
    """Return a pool; the device tensors it is told of hold one page and are never used."""
    return _mla_pool(shape, layout) if shape.is_mla else _mha_pool(shape, layout)


def put_page(pool: MHATokenToKVPoolHost | MLATokenToKVPoolHost, page: int, rows: Rows) -> None:
    """Make *rows* the content of a page, where SGLang itself looks for it."""
    values = torch.from_numpy(_in_layout(pool.layout, rows).copy()).view(pool.dtype)
    if pool.layout == "page_unified":
        pool.kv_buffer[page].view(-1).copy_(values.view(-1))
    else:
        pool.set_from_flat_data_page(page * pool.page_size, values.view(-1))


def page_rows(pool: MHATokenToKVPoolHost | MLATokenToKVPoolHost, page: int, like: Rows) -> Rows:
    """Return the content of a page as SGLang itself sees it, shaped as *like*."""
    if pool.layout == "page_unified":
        flat = pool.kv_buffer[page].reshape(-1)
    else:
        flat = pool.get_data_page(page * pool.page_size)
    stored = flat.contiguous().view(torch.uint16 if flat.element_size() == 2 else torch.uint8).numpy()
    return _from_layout(pool.layout, stored.view(np.uint16), like.shape)


def slots_of(pool: MHATokenToKVPoolHost | MLATokenToKVPoolHost, pages: list[int]) -> torch.Tensor:
    """Return the host indices of *pages*, as SGLang's controller hands them over."""
    return torch.cat([torch.arange(page * pool.page_size, (page + 1) * pool.page_size) for page in pages])


def _axes(layout: str, ndim: int) -> tuple[int, ...]:
    """Return the axes of `Rows` in the order in which a flat page of *layout* has them."""
    mha = {
        "layer_first": (1, 0, 2, 3, 4),
        "page_first": (1, 2, 0, 3, 4),
        "page_first_direct": (1, 0, 2, 3, 4),
        "page_head": (1, 3, 2, 0, 4),
        "page_unified": (0, 1, 2, 3, 4),
    }
    return mha[layout] if ndim == 5 else ((1, 0, 2) if layout == "page_first" else (0, 1, 2))


def _in_layout(layout: str, rows: Rows) -> Rows:
    return np.ascontiguousarray(rows.transpose(_axes(layout, rows.ndim)))


def _from_layout(layout: str, stored: Rows, shape: tuple[int, ...]) -> Rows:
    axes = _axes(layout, len(shape))
    return stored.reshape([shape[axis] for axis in axes]).transpose(np.argsort(axes))


def _mha_pool(shape: Shape, layout: str) -> MHATokenToKVPoolHost:
    v_head_dim = shape.head_dim if shape.v_head_dim is None else shape.v_head_dim
    made = MHATokenToKVPoolHost if v_head_dim == shape.head_dim else AsymmetricMHATokenToKVPoolHost
    return made(
        _mha_info(shape, v_head_dim),
        host_to_device_ratio=2.0,
        host_size=0,
        page_size=shape.page_tokens,
        layout=layout,
        pin_memory=False,
        device_capacity_tokens=shape.page_tokens,
        start_layer=shape.start_layer,
        end_layer=shape.start_layer + shape.layers,
        draft_buffer_infos=[_mha_info(replace(shape, layers=1), v_head_dim)] * shape.draft_layers,
        host_token_capacity=PAGES * shape.page_tokens,
    )


def _mha_info(shape: Shape, v_head_dim: int) -> MHABufferInfo:
    k, v = (_device_layers(shape, shape.heads, width) for width in (shape.head_dim, v_head_dim))
    return MHABufferInfo(
        buffers=KVBuffers(k=k, v=v, k_data_ptrs=_pointers(k), v_data_ptrs=_pointers(v), layout=KVBufferLayout.NHD),
        page_size=shape.page_tokens,
        head_num=shape.heads,
        head_dim=shape.head_dim,
        v_head_dim=v_head_dim,
        dtype=shape.dtype,
        device=torch.device("cpu"),
    )


def _mla_pool(shape: Shape, layout: str) -> MLATokenToKVPoolHost:
    latents = _device_layers(shape, 1, shape.head_dim)
    info = MLABufferInfo(
        buffers=latents,
        data_ptrs=_pointers(latents),
        layer_indices=tuple(range(shape.layers)),
        device_layer_num=shape.layers,
        page_size=shape.page_tokens,
        kv_lora_rank=shape.head_dim - 16,
        qk_rope_head_dim=16,
        kv_cache_dim=shape.head_dim,
        dtype=shape.dtype,
        device=torch.device("cpu"),
    )
    return MLATokenToKVPoolHost(
        info,
        2.0,
        0,
        shape.page_tokens,
        layout,
        pin_memory=False,
        device_capacity_tokens=shape.page_tokens,
        start_layer=shape.start_layer,
        end_layer=shape.start_layer + shape.layers,
        target_layer_num=shape.layers,
        host_token_capacity=PAGES * shape.page_tokens,
    )


def _device_layers(shape: Shape, heads: int, width: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.empty(shape.page_tokens, heads, width, dtype=shape.dtype) for _ in range(shape.layers))


def _pointers(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.uint64)
