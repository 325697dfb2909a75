"""A model of any shape with seeded random weights, for tests and for trying topologies without a download."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomShape:
    """Sizes of a random model; the names are those of `ModelConfig`."""

    num_layers: int = 4
    num_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 16
    mlp_size: int = 96
    vocab_size: int = 256
    tied_embeddings: bool = True

    @property
    def hidden_size(self) -> int:
        return self.num_heads * self.head_dim


def write_random_model(folder: Path, shape: RandomShape, *, seed: int) -> None:
    """Write `config.json` and `model.safetensors` of a random model into *folder*; the same bytes for the same seed."""
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.mlp_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.tied_embeddings,
        "eos_token_id": None,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(settings, indent=2))
    save_file(random_tensors(shape, seed=seed), folder / "model.safetensors", metadata={"format": "pt"})


def random_tensors(shape: RandomShape, *, seed: int) -> dict[str, Tensor]:
    """Return the model's weights by their names in a model folder, float32.

    Matrices are scaled so that hidden states neither vanish nor grow from layer to layer.
    """
    generator = torch.Generator().manual_seed(seed)
    query, key_value = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    hidden, inner = shape.hidden_size, shape.mlp_size

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

    def norm() -> Tensor:
        return torch.ones(hidden) + 0.1 * torch.randn(hidden, generator=generator)

    tensors = {"model.embed_tokens.weight": torch.randn(shape.vocab_size, hidden, generator=generator)}
    for layer in range(shape.num_layers):
        of_layer = {
            "input_layernorm": norm(),
            "self_attn.q_proj": matrix(query, hidden),
            "self_attn.k_proj": matrix(key_value, hidden),
            "self_attn.v_proj": matrix(key_value, hidden),
            "self_attn.o_proj": matrix(hidden, query),
            "post_attention_layernorm": norm(),
            "mlp.gate_proj": matrix(inner, hidden),
            "mlp.up_proj": matrix(inner, hidden),
            "mlp.down_proj": matrix(hidden, inner),
        }
        tensors |= {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in of_layer.items()}
    tensors["model.norm.weight"] = norm()
    if not shape.tied_embeddings:
        tensors["lm_head.weight"] = matrix(shape.vocab_size, hidden)
    return tensors
