"""A Llama-family decoder for one rank: RMSNorm, RoPE, grouped-query attention, SwiGLU.

One sequence at a time. The rank holds a range of layers (its pipeline stage) and a share of heads and
MLP columns (tensor parallel); K and V live in the slots of a `KVPool`.

What is equal to the bit, with the same dtype and number of threads: the same call twice, and any split
into pipeline stages. Tensor-parallel shares sum in another order, and a prompt computed in other chunks
runs matrix products of other shapes, so those agree only to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from hicache_storage.engine_integration.reference_engine.kv_pool import KVPool
from hicache_storage.engine_integration.reference_engine.model_config import Llama3Scaling, ModelConfig
from hicache_storage.engine_integration.reference_engine.partition import Part
from hicache_storage.engine_integration.reference_engine.weights import LayerWeights, StageWeights
from hicache_storage.errors import InvariantError

TensorSum: TypeAlias = Callable[[Tensor], Tensor]
"""Returns the sum of every tensor-parallel rank's tensor, the same on each; may reuse its argument."""


def sum_of_one(tensor: Tensor) -> Tensor:
    """Return *tensor*: the sum over a single rank."""
    return tensor


class LlamaStage:
    """One rank's part of the model."""

    def __init__(
        self, config: ModelConfig, part: Part, weights: StageWeights, tensor_sum: TensorSum = sum_of_one
    ) -> None:
        self.config = config
        self.part = part
        self._weights = weights
        self._sum = tensor_sum
        self._inverse_frequencies = rope_inverse_frequencies(config)

    @property
    def dtype(self) -> torch.dtype:
        return self._weights.layers[0].query.dtype

    def new_pool(self, num_pages: int, page_tokens: int) -> KVPool:
        """Return an empty pool for this rank's layers and KV heads."""
        return KVPool.empty(
            num_layers=len(self.part.layers),
            num_pages=num_pages,
            page_tokens=page_tokens,
            heads=len(self.part.kv_heads),
            head_dim=self.config.head_dim,
            dtype=self.dtype,
        )

    @torch.inference_mode()
    def embed(self, tokens: Tensor) -> Tensor:
        """Return the hidden states `[S, hidden_size]` of *tokens* `[S]`, int64. First stage only."""
        if self._weights.embedding is None:
            raise InvariantError("only the first pipeline stage embeds tokens")
        return functional.embedding(tokens, self._weights.embedding)

    @torch.inference_mode()
    def run(self, hidden: Tensor, pool: KVPool, slots: Tensor) -> Tensor:
        """Return *hidden* after this stage's layers; K and V of the chunk are in *pool*.

        Args:
            hidden: the chunk's states, `[S, hidden_size]`.
            slots: slots of every token up to and including the chunk, `[context]`, int64. The last
                S belong to the chunk and are written, the others are read.
        """
        rotation = self._rotation(len(slots) - len(hidden), len(slots))
        mask = _causal_mask(len(hidden), len(slots))
        for index, layer in enumerate(self._weights.layers):
            attended = self._attend(layer, hidden, (pool.keys[index], pool.values[index]), slots, rotation, mask)
            hidden = hidden + self._sum(attended)
            hidden = hidden + self._sum(self._mlp(layer, hidden))
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits `[vocab_size]` behind the last of *hidden* `[S, hidden_size]`. Last stage only."""
        if self._weights.final_norm is None or self._weights.head is None:
            raise InvariantError("only the last pipeline stage has logits")
        return functional.linear(self._norm(hidden[-1], self._weights.final_norm), self._weights.head)

    def _attend(
        self,
        layer: LayerWeights,
        hidden: Tensor,
        pool: tuple[Tensor, Tensor],
        slots: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
    ) -> Tensor:
        tokens = len(hidden)
        normed = self._norm(hidden, layer.attention_norm)
        query, key, value = (
            functional.linear(normed, matrix).view(tokens, -1, self.config.head_dim)
            for matrix in (layer.query, layer.key, layer.value)
        )
        keys, values = pool
        keys[slots[-tokens:]] = _rotate(key, rotation)
        values[slots[-tokens:]] = value
        attended = functional.scaled_dot_product_attention(
            _rotate(query, rotation).transpose(0, 1)[None],
            keys[slots].transpose(0, 1)[None],
            values[slots].transpose(0, 1)[None],
            attn_mask=mask,
            enable_gqa=True,
        )
        return functional.linear(attended[0].transpose(0, 1).reshape(tokens, -1), layer.output)

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        normed = self._norm(hidden, layer.mlp_norm)
        gated = functional.silu(functional.linear(normed, layer.gate)) * functional.linear(normed, layer.up)
        return functional.linear(gated, layer.down)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Return *hidden* scaled to unit root mean square, computed in float32 whatever its dtype."""
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.config.norm_epsilon)
        return weight * wide.to(hidden.dtype)

    def _rotation(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin for positions `[start, stop)`, each `[S, 1, head_dim]`."""
        angles = torch.arange(start, stop, dtype=torch.float32)[:, None] * self._inverse_frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def rope_inverse_frequencies(config: ModelConfig) -> Tensor:
    """Return the rotation per token of each pair of dimensions, `[head_dim / 2]`, float32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    return frequencies if config.rope_scaling is None else _stretch(frequencies, config.rope_scaling)


def _stretch(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Divide slow rotations by the factor, keep fast ones, and blend between the two thresholds."""
    turns = scaling.original_tokens * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def _rotate(states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Return *states* `[S, heads, head_dim]` turned by their positions' angles."""
    cos, sin = rotation
    left, right = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-right, left), dim=-1) * sin


def _causal_mask(chunk_tokens: int, context_tokens: int) -> Tensor | None:
    """Return which of the context each token of the chunk sees, `[S, context]`; None = all of it."""
    if chunk_tokens == 1:
        return None
    visible = torch.ones(chunk_tokens, context_tokens, dtype=torch.bool)
    return visible.tril(diagonal=context_tokens - chunk_tokens)
