"""A process that turns a GGUF file into a safetensors model folder, through transformers' GGUF loader.

Run as `python -m hicache_storage.engine_integration.reference_engine.convert weights|tokenizer FILE FOLDER`.
The two halves are separate calls because each parses the file's metadata for seconds on one core.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

_OF_THE_GGUF_FILE = {"quantization_config", "_name_or_path", "_model_name_or_path"}


def convert_weights(gguf: Path, folder: Path) -> None:
    """Write `config.json` and `model.safetensors` (float32) of *gguf* into *folder*."""
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tied = bool(model.config.tie_word_embeddings)
    tensors = {
        name: tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {name: value for name, value in model.config.to_dict().items() if name not in _OF_THE_GGUF_FILE}
    settings["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True))


def convert_tokenizer(gguf: Path, folder: Path) -> None:
    """Write `tokenizer.json` and its settings of *gguf* into *folder*."""
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def main(arguments: list[str]) -> int:
    """Convert the half that *arguments* name."""
    part, gguf, folder = arguments
    convert = {"weights": convert_weights, "tokenizer": convert_tokenizer}[part]
    convert(Path(gguf), Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
