"""A model of any shape with seeded random weights, for tests and for trying topologies without a download."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from hicache_storage.engine_integration.reference_engine.random_shape import RandomShape, config_json

__all__ = ["RandomShape", "random_tensors", "write_random_model"]


def write_random_model(folder: Path, shape: RandomShape, *, seed: int) -> None:
    """Write `config.json` and `model.safetensors` of a random model into *folder*; the same bytes for the same seed."""
    (folder / "config.json").write_bytes(config_json(shape))
    save_file(random_tensors(shape, seed=seed), folder / "model.safetensors", metadata={"format": "pt"})


def random_tensors(shape: RandomShape, *, seed: int) -> dict[str, Tensor]:
    """Return the model's weights by their names in a model folder, float32.

    Matrices are scaled so that hidden states neither vanish nor grow from layer to layer.
    """
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = shape.hidden_size, shape.mlp_size

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

    def norm(width: int) -> Tensor:
        return torch.ones(width) + 0.1 * torch.randn(width, generator=generator)

    tensors = {"model.embed_tokens.weight": torch.randn(shape.vocab_size, hidden, generator=generator)}
    for layer in range(shape.num_layers):
        of_layer = {
            "input_layernorm": norm(hidden),
            **{f"self_attn.{name}": matrix(*sizes) for name, sizes in _attention_matrices(shape).items()},
            "post_attention_layernorm": norm(hidden),
            "mlp.gate_proj": matrix(inner, hidden),
            "mlp.up_proj": matrix(inner, hidden),
            "mlp.down_proj": matrix(hidden, inner),
        }
        of_layer |= {f"self_attn.{name}": norm(width) for name, width in _attention_norms(shape).items()}
        tensors |= {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in of_layer.items()}
    tensors["model.norm.weight"] = norm(hidden)
    if not shape.tied_embeddings:
        tensors["lm_head.weight"] = matrix(shape.vocab_size, hidden)
    return tensors


def _attention_matrices(shape: RandomShape) -> dict[str, tuple[int, int]]:
    """Return rows and columns of each of a layer's attention matrices."""
    hidden, latent = shape.hidden_size, shape.latent
    if latent is None:
        query, key_value = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        return {
            "q_proj": (query, hidden),
            "k_proj": (key_value, hidden),
            "v_proj": (key_value, hidden),
            "o_proj": (hidden, query),
        }
    query = shape.num_heads * latent.query_dim
    queries = {"q_proj": (query, hidden)}
    if latent.query_rank is not None:
        queries = {"q_a_proj": (latent.query_rank, hidden), "q_b_proj": (query, latent.query_rank)}
    return {
        **queries,
        "kv_a_proj_with_mqa": (latent.row_dim, hidden),
        "kv_b_proj": (shape.num_heads * (latent.nope_dim + latent.value_dim), latent.kv_rank),
        "o_proj": (hidden, shape.num_heads * latent.value_dim),
    }


def _attention_norms(shape: RandomShape) -> dict[str, int]:
    latent = shape.latent
    if latent is None:
        return {}
    return {"kv_a_layernorm": latent.kv_rank} | (
        {} if latent.query_rank is None else {"q_a_layernorm": latent.query_rank}
    )
