"""SGLang's own host pools, built from tensors on the CPU and not pinned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo, MLABufferInfo
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

HostPool: TypeAlias = MHATokenToKVPoolHost | MLATokenToKVPoolHost


@dataclass(frozen=True, slots=True)
class PoolShape:
    """The sizes of one rank's pool; *head_dim* is the latent row's width for MLA."""

    layers: int
    heads: int
    head_dim: int
    page_tokens: int
    pages: int
    dtype: torch.dtype = torch.bfloat16


def mha_pool(shape: PoolShape, layout: str) -> MHATokenToKVPoolHost:
    """Return a pool of K and V; the device tensors it is told of hold one page and are never used."""
    k, v = (_device_layers(shape, shape.heads) for _ in range(2))
    info = MHABufferInfo(
        buffers=KVBuffers(k=k, v=v, k_data_ptrs=_pointers(k), v_data_ptrs=_pointers(v), layout=KVBufferLayout.NHD),
        page_size=shape.page_tokens,
        head_num=shape.heads,
        head_dim=shape.head_dim,
        v_head_dim=shape.head_dim,
        dtype=shape.dtype,
        device=torch.device("cpu"),
    )
    return MHATokenToKVPoolHost(
        info,
        host_to_device_ratio=2.0,
        host_size=0,
        page_size=shape.page_tokens,
        layout=layout,
        pin_memory=False,
        device="cpu",
        device_capacity_tokens=shape.page_tokens,
        start_layer=0,
        end_layer=shape.layers,
        head_group_num=1,
        host_token_capacity=shape.pages * shape.page_tokens,
    )


def mla_pool(shape: PoolShape, layout: str) -> MLATokenToKVPoolHost:
    """Return a pool of latent rows; its device tensors as in `mha_pool`."""
    latents = _device_layers(shape, 1)
    info = MLABufferInfo(
        buffers=latents,
        data_ptrs=_pointers(latents),
        layer_indices=tuple(range(shape.layers)),
        device_layer_num=shape.layers,
        page_size=shape.page_tokens,
        kv_lora_rank=shape.head_dim - shape.head_dim // 9,
        qk_rope_head_dim=shape.head_dim // 9,
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
        device="cpu",
        device_capacity_tokens=shape.page_tokens,
        start_layer=0,
        end_layer=shape.layers,
        target_layer_num=shape.layers,
        host_token_capacity=shape.pages * shape.page_tokens,
    )


def _device_layers(shape: PoolShape, heads: int) -> tuple[torch.Tensor, ...]:
    row = (shape.page_tokens, heads, shape.head_dim)
    return tuple(torch.empty(row, dtype=shape.dtype) for _ in range(shape.layers))


def _pointers(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.uint64)
