"""What every decoder of this engine has: embedding, RMSNorm, RoPE, gated MLP, logits. Attention differs by model.

One sequence at a time. The rank holds a range of layers (its pipeline stage) and a share of heads and MLP columns
(tensor parallel); KV lives in the slots of a `DevicePool`.

What is equal to the bit, with the same dtype and number of threads: the same call twice, and any split into pipeline
stages. Tensor-parallel shares sum in another order, and a prompt computed in other chunks runs matrix products of
other shapes, so those agree only to rounding.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from hicache_storage.engine_integration.reference_engine.model_config import Llama3Scaling, ModelConfig
from hicache_storage.engine_integration.reference_engine.partition import Part
from hicache_storage.engine_integration.reference_engine.weights import LayerT, StageWeights
from hicache_storage.errors import InvariantError
from hicache_storage.kernels import DevicePool

TensorSum: TypeAlias = Callable[[Tensor], Tensor]
"""Returns the sum of every tensor-parallel rank's tensor, the same on each; may reuse its argument."""

Rotation: TypeAlias = tuple[Tensor, Tensor]
"""Cos and sin of a chunk's positions, each `[S, 1, rope_dim]`."""


def sum_of_one(tensor: Tensor) -> Tensor:
    """Return *tensor*: the sum over a single rank."""
    return tensor


def read_at_once(_: int) -> None:
    """Wait for no layer: everything is in the pool already."""


class DecoderStage(ABC, Generic[LayerT]):
    """One rank's part of the model."""

    def __init__(
        self, config: ModelConfig, part: Part, weights: StageWeights[LayerT], tensor_sum: TensorSum = sum_of_one
    ) -> None:
        self.config = config
        self.part = part
        self._weights = weights
        self._sum = tensor_sum
        self._inverse_frequencies = rope_inverse_frequencies(config).to(self.device)

    @property
    def dtype(self) -> torch.dtype:
        return self._weights.layers[0].attention_norm.dtype

    @property
    def device(self) -> torch.device:
        return self._weights.layers[0].attention_norm.device

    @abstractmethod
    def new_pool(self, num_pages: int, page_tokens: int, dtype: torch.dtype | None = None) -> DevicePool:
        """Return an empty pool for this rank's layers and KV heads.

        Args:
            dtype: of what is kept; None is that of the weights.
        """

    @abstractmethod
    def attend(
        self, layer: LayerT, normed: Tensor, pool: DevicePool, slots: Tensor, rotation: Rotation, index: int
    ) -> Tensor:
        """Return this rank's share of a layer's attention for *normed* `[S, hidden_size]`, before the sum.

        The chunk's KV is in the last S of *slots* of layer *index* of *pool* afterwards.
        """

    @torch.inference_mode()
    def embed(self, tokens: Tensor) -> Tensor:
        """Return the hidden states `[S, hidden_size]` of *tokens* `[S]`, int64. First stage only."""
        if self._weights.embedding is None:
            raise InvariantError("only the first pipeline stage embeds tokens")
        return functional.embedding(tokens.to(self.device), self._weights.embedding)

    @torch.inference_mode()
    def run(
        self, hidden: Tensor, pool: DevicePool, slots: Tensor, before_layer: Callable[[int], None] = read_at_once
    ) -> Tensor:
        """Return *hidden* after this stage's layers; KV of the chunk is in *pool*.

        Args:
            hidden: the chunk's states, `[S, hidden_size]`.
            slots: slots of every token up to and including the chunk, `[context]`, int64. The last
                S belong to the chunk and are written, the others are read.
            before_layer: called with each layer of the pool before its KV is read; returns once it is there.
        """
        rotation = self._rotation(len(slots) - len(hidden), len(slots))
        for index, layer in enumerate(self._weights.layers):
            normed = self.norm(hidden, layer.attention_norm)
            before_layer(index)
            hidden = hidden + self._sum(self.attend(layer, normed, pool, slots, rotation, index))
            hidden = hidden + self._sum(self._mlp(layer, hidden))
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits `[vocab_size]` behind the last of *hidden* `[S, hidden_size]`. Last stage only."""
        if self._weights.final_norm is None or self._weights.head is None:
            raise InvariantError("only the last pipeline stage has logits")
        return functional.linear(self.norm(hidden[-1], self._weights.final_norm), self._weights.head)

    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Return *hidden* scaled to unit root mean square, computed in float32 whatever its dtype."""
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.config.norm_epsilon)
        return weight * wide.to(hidden.dtype)

    def _mlp(self, layer: LayerT, hidden: Tensor) -> Tensor:
        normed = self.norm(hidden, layer.mlp_norm)
        gated = functional.silu(functional.linear(normed, layer.gate)) * functional.linear(normed, layer.up)
        return functional.linear(gated, layer.down)

    def _rotation(self, start: int, stop: int) -> Rotation:
        positions = torch.arange(start, stop, dtype=torch.float32, device=self.device)
        angles = positions[:, None] * self._inverse_frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def rope_inverse_frequencies(config: ModelConfig) -> Tensor:
    """Return the rotation per token of each pair of dimensions, `[rope_dim / 2]`, float32."""
    exponents = torch.arange(0, config.rope_dim, 2, dtype=torch.int64).float() / config.rope_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    return frequencies if config.rope_scaling is None else _stretch(frequencies, config.rope_scaling)


def rotate(states: Tensor, rotation: Rotation) -> Tensor:
    """Return *states* `[S, heads, rope_dim]` turned by their positions' angles."""
    cos, sin = rotation
    left, right = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-right, left), dim=-1) * sin


def causal_mask(chunk_tokens: int, context_tokens: int, device: torch.device) -> Tensor | None:
    """Return which of the context each token of the chunk sees, `[S, context]`; None = all of it."""
    if chunk_tokens == 1:
        return None
    visible = torch.ones(chunk_tokens, context_tokens, dtype=torch.bool, device=device)
    return visible.tril(diagonal=context_tokens - chunk_tokens)


def _stretch(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Divide slow rotations by the factor, keep fast ones, and blend between the two thresholds."""
    turns = scaling.original_tokens * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor
