from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hicache_storage.engine_integration.reference_engine.model_config import read_model_config
from hicache_storage.engine_integration.reference_engine.partition import part_of
from hicache_storage.engine_integration.reference_engine.weights import SafetensorsFolder, load_weights
from hicache_storage.errors import ConfigError
from hicache_storage.layout import Topology


def test_the_shares_of_all_ranks_put_together_are_the_matrix(tiny_model: Path) -> None:
    config, source, topology = read_model_config(tiny_model), SafetensorsFolder(tiny_model), Topology(tp=4)
    whole = load_file(tiny_model / "model.safetensors")

    shares = [
        load_weights(source, config, part_of(config, topology, tp_rank=rank), torch.float32).layers[2]
        for rank in range(4)
    ]

    assert torch.equal(torch.cat([share.query for share in shares]), whole["model.layers.2.self_attn.q_proj.weight"])
    assert torch.equal(torch.cat([share.key for share in shares]), whole["model.layers.2.self_attn.k_proj.weight"])
    assert torch.equal(
        torch.cat([share.output for share in shares], dim=1), whole["model.layers.2.self_attn.o_proj.weight"]
    )
    assert torch.equal(torch.cat([share.down for share in shares], dim=1), whole["model.layers.2.mlp.down_proj.weight"])


def test_inner_stages_hold_no_tables(tiny_model: Path) -> None:
    config, source, topology = read_model_config(tiny_model), SafetensorsFolder(tiny_model), Topology(pp=3)

    first, inner, last = (
        load_weights(source, config, part_of(config, topology, pp_rank=rank), torch.float32) for rank in range(3)
    )

    assert (first.embedding is None, first.final_norm is None, first.head is None) == (False, True, True)
    assert (inner.embedding, inner.final_norm, inner.head) == (None, None, None)
    assert (last.embedding is None, last.final_norm is None, last.head is None) == (True, False, False)


def test_weights_come_in_the_dtype_that_was_asked_for(tiny_model: Path) -> None:
    config = read_model_config(tiny_model)

    weights = load_weights(SafetensorsFolder(tiny_model), config, part_of(config, Topology()), torch.bfloat16)

    assert weights.layers[0].query.dtype == weights.layers[3].down.dtype == torch.bfloat16


def test_a_model_in_several_files_is_read_through_its_index(tiny_model: Path, tmp_path: Path) -> None:
    tensors = load_file(tiny_model / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[: len(names) // 2], "b.safetensors": names[len(names) // 2 :]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, tmp_path / file)
    weight_map = {name: file for file, held in parts.items() for name in held}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    source = SafetensorsFolder(tmp_path)

    assert all(torch.equal(source.get(name), tensors[name]) for name in names)


def test_a_missing_tensor_is_named(tiny_model: Path, tmp_path: Path) -> None:
    tensors = load_file(tiny_model / "model.safetensors")
    del tensors["model.layers.3.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    config = read_model_config(tiny_model)

    with pytest.raises(ConfigError, match=r"model\.layers\.3\.mlp\.up_proj\.weight"):
        load_weights(SafetensorsFolder(tmp_path), config, part_of(config, Topology()), torch.float32)


@pytest.mark.parametrize("body", [b"", b"no tensors here, only words"])
def test_a_damaged_file_is_refused(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(body)

    with pytest.raises(ConfigError, match="cannot be read"):
        SafetensorsFolder(tmp_path)
