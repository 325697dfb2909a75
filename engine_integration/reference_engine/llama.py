"""A decoder of the Llama family for one rank: grouped-query attention over K and V per head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hicache_storage.engine_integration.reference_engine.decoder import (
    DecoderStage,
    Rotation,
    TensorSum,
    causal_mask,
    rope_inverse_frequencies,
    rotate,
    sum_of_one,
)
from hicache_storage.engine_integration.reference_engine.kv_pool import new_kv_pool, rows_of, store_rows
from hicache_storage.engine_integration.reference_engine.weights import LayerWeights
from hicache_storage.kernels import DevicePool

__all__ = ["LlamaStage", "TensorSum", "rope_inverse_frequencies", "sum_of_one"]


class LlamaStage(DecoderStage[LayerWeights]):
    """One rank's part of the model."""

    def new_pool(self, num_pages: int, page_tokens: int, dtype: torch.dtype | None = None) -> DevicePool:
        return new_kv_pool(
            num_layers=len(self.part.layers),
            num_slots=num_pages * page_tokens,
            row=(len(self.part.kv_heads), self.config.head_dim),
            page_tokens=page_tokens,
            dtype=dtype or self.dtype,
            device=str(self.device),
        )

    def attend(
        self, layer: LayerWeights, normed: Tensor, pool: DevicePool, slots: Tensor, rotation: Rotation, index: int
    ) -> Tensor:
        tokens = len(normed)
        query, key, value = (
            functional.linear(normed, matrix).view(tokens, -1, self.config.head_dim)
            for matrix in (layer.query, layer.key, layer.value)
        )
        keys, values = pool.keys[index], pool.values[index]
        store_rows(keys, slots[-tokens:], rotate(key, rotation))
        store_rows(values, slots[-tokens:], value)
        attended = functional.scaled_dot_product_attention(
            rotate(query, rotation).transpose(0, 1)[None],
            rows_of(keys, slots, self.dtype).transpose(0, 1)[None],
            rows_of(values, slots, self.dtype).transpose(0, 1)[None],
            attn_mask=causal_mask(tokens, len(slots), self.device),
            enable_gqa=True,
        )
        return functional.linear(attended[0].transpose(0, 1).reshape(tokens, -1), layer.output)
