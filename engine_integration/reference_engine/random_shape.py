"""Sizes of a random model. Free of torch, so that an engine's parent can name one."""

from __future__ import annotations

from dataclasses import dataclass

from hicache_storage.engine_integration.reference_engine.model_config import LatentShape


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomShape:
    """Sizes of a random model; the names are those of `ModelConfig`.

    Attributes:
        latent: sizes of latent attention (MLA); None for grouped-query attention.
    """

    num_layers: int = 4
    num_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 16
    mlp_size: int = 96
    vocab_size: int = 256
    tied_embeddings: bool = True
    max_tokens: int = 2048
    eos_token_id: int | None = None
    latent: LatentShape | None = None

    @property
    def hidden_size(self) -> int:
        return self.num_heads * self.head_dim
