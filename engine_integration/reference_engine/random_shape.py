"""Sizes of a random model. Free of torch, so that an engine's parent can name one."""

from __future__ import annotations

import json
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


def config_json(shape: RandomShape) -> bytes:
    """Return the `config.json` of a model of *shape*."""
    settings: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.mlp_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_tokens,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.tied_embeddings,
        "eos_token_id": shape.eos_token_id,
        "torch_dtype": "float32",
    }
    if shape.latent is not None:
        settings |= {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "num_key_value_heads": shape.num_heads,
            "head_dim": shape.latent.rope_dim,
            "kv_lora_rank": shape.latent.kv_rank,
            "q_lora_rank": shape.latent.query_rank,
            "qk_nope_head_dim": shape.latent.nope_dim,
            "qk_rope_head_dim": shape.latent.rope_dim,
            "v_head_dim": shape.latent.value_dim,
            "first_k_dense_replace": shape.num_layers,
            "rope_interleave": True,
        }
    return json.dumps(settings, indent=2).encode()
