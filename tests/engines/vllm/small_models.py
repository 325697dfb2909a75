"""Small models with seeded weights, sure enough of their answers not to mind another order of sums."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, LlamaConfig, LlamaForCausalLM

VOCABULARY = 512
_LAYERS, _HIDDEN, _HEADS, _KV_HEADS, _HEAD_DIM = 4, 256, 8, 2, 32
_INTERMEDIATE, _POSITIONS, _SPREAD = 512, 2048, 0.2
_RANK = 8


def save_llama(folder: Path) -> Path:
    """Make a Llama of 4 layers with 2 KV heads."""
    torch.manual_seed(7)
    config = LlamaConfig(
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_KV_HEADS,
        head_dim=_HEAD_DIM,
        vocab_size=VOCABULARY,
        hidden_size=_HIDDEN,
        intermediate_size=_INTERMEDIATE,
        max_position_embeddings=_POSITIONS,
        initializer_range=_SPREAD,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_latent(folder: Path) -> Path:
    """Make a DeepSeek-V2 of 2 layers without experts: MLA with rows of 512 and 64 elements."""
    torch.manual_seed(7)
    config = DeepseekV2Config(
        num_hidden_layers=2,
        first_k_dense_replace=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
        moe_intermediate_size=128,
        vocab_size=VOCABULARY,
        hidden_size=_HIDDEN,
        intermediate_size=_INTERMEDIATE,
        max_position_embeddings=_POSITIONS,
        initializer_range=_SPREAD,
    )
    DeepseekV2ForCausalLM(config).save_pretrained(folder)
    return folder


def save_adapter(folder: Path, seed: int) -> Path:
    """Make a LoRA adapter of `save_llama`'s model that changes K and V of every layer."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(_LAYERS):
        for name in ("k_proj", "v_proj"):
            base = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{base}.lora_A.weight"] = torch.randn(_RANK, _HIDDEN, generator=generator)
            weights[f"{base}.lora_B.weight"] = torch.randn(_KV_HEADS * _HEAD_DIM, _RANK, generator=generator)
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": _RANK, "lora_alpha": _RANK, "target_modules": ["k_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder
