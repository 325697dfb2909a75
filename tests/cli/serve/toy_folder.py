"""A model folder of a few bytes: everything that a server reads, and nothing to compute with."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

EOS = "<|end|>"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_toy_folder(folder: Path, *, layers: int = 60, kv_heads: int = 8, max_tokens: int = 512) -> Path:
    """Write a model whose weights are missing but for their file's name; return *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": 8 * kv_heads,
        "intermediate_size": 16 * kv_heads,
        "num_attention_heads": kv_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 8,
        "vocab_size": 257,
        "max_position_embeddings": max_tokens,
        "eos_token_id": 256,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"none")
    return folder


def write_tokenizer(folder: Path, *, template: str | None = TEMPLATE) -> None:
    """Write a tokenizer whose tokens are bytes, and a chat template."""
    letters = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(EOS, special=True)])
    tokenizer.enable_truncation(max_length=4)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": {"content": EOS, "special": True}, "model_max_length": 5}
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
