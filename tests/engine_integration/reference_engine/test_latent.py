"""Latent attention: the same logits as transformers' DeepSeek-V3, from rows that are shared by all heads."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from hicache_storage.engine_integration.reference_engine.model import Stage, load_stage
from hicache_storage.engine_integration.reference_engine.model_config import read_model_config
from hicache_storage.engine_integration.reference_engine.random_model import random_tensors, write_random_model
from hicache_storage.engine_integration.reference_engine.random_shape import RandomShape
from hicache_storage.errors import ConfigError
from tests.engine_integration.reference_engine.asking import MLA, PAGE_TOKENS, config, prompt
from tests.engine_integration.reference_engine.test_llama import ThreadSum

TOKENS = prompt(3, 23)


def logits_of(stage: Stage, chunks: list[int]) -> Tensor:
    pool, start = stage.new_pool(8, PAGE_TOKENS), 0
    for stop in chunks:
        hidden = stage.run(stage.embed(torch.tensor(TOKENS[start:stop])), pool, torch.arange(stop))
        start = stop
    return stage.logits(hidden)


def theirs(shape: RandomShape) -> Tensor:
    latent = shape.latent
    assert latent is not None
    settings = DeepseekV3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.mlp_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_heads,
        kv_lora_rank=latent.kv_rank,
        q_lora_rank=latent.query_rank,
        qk_nope_head_dim=latent.nope_dim,
        qk_rope_head_dim=latent.rope_dim,
        v_head_dim=latent.value_dim,
        first_k_dense_replace=shape.num_layers,
        tie_word_embeddings=shape.tied_embeddings,
    )
    model = DeepseekV3ForCausalLM(settings)
    missing, unexpected = model.load_state_dict(random_tensors(shape, seed=5), strict=False)
    assert (missing, unexpected) == ([], [])
    with torch.inference_mode():
        found: Tensor = model(torch.tensor([TOKENS])).logits[0, -1]
    return found


@pytest.mark.parametrize("query_rank", [12, None])
def test_logits_equal_those_of_transformers(query_rank: int | None) -> None:
    assert MLA.latent is not None
    shape = replace(MLA, latent=replace(MLA.latent, query_rank=query_rank))

    ours = logits_of(load_stage(config(shape), lambda tensor: tensor, tp_rank=0, pp_rank=0), [len(TOKENS)])

    torch.testing.assert_close(ours, theirs(shape), rtol=0, atol=2e-5)


def test_chunks_change_logits_by_rounding_only() -> None:
    stage = load_stage(config(MLA), lambda tensor: tensor, tp_rank=0, pp_rank=0)

    torch.testing.assert_close(logits_of(stage, [5, 6, 17, 23]), logits_of(stage, [23]), rtol=0, atol=1e-5)


def test_ranks_share_heads_and_hold_the_same_rows() -> None:
    shared, results, rows = ThreadSum(4), [torch.empty(0)] * 4, [torch.empty(0)] * 4

    def work(rank: int) -> None:
        stage = load_stage(config(MLA, topology="tp4pp1"), shared.of_rank(rank), tp_rank=rank, pp_rank=0)
        pool = stage.new_pool(8, PAGE_TOKENS)
        hidden = stage.run(stage.embed(torch.tensor(TOKENS)), pool, torch.arange(len(TOKENS)))
        results[rank], rows[rank] = stage.logits(hidden), torch.stack(pool.keys)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    whole = load_stage(config(MLA), lambda tensor: tensor, tp_rank=0, pp_rank=0)
    torch.testing.assert_close(results[0], logits_of(whole, [len(TOKENS)]), rtol=0, atol=1e-5)
    assert all(torch.equal(one, rows[0]) for one in rows)


def test_a_folder_of_a_random_model_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_random_model(tmp_path, MLA, seed=5)

    found = read_model_config(tmp_path)

    assert found.latent == MLA.latent
    assert found.kv_shape(dtype="float32", page_tokens=4).is_mla
    stage = load_stage(config(random=None, model=str(tmp_path)), lambda tensor: tensor, tp_rank=0, pp_rank=0)
    in_memory = load_stage(config(MLA), lambda tensor: tensor, tp_rank=0, pp_rank=0)
    assert torch.equal(logits_of(stage, [23]), logits_of(in_memory, [23]))


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("first_k_dense_replace", 1, "no experts"),
        ("kv_lora_rank", None, "needs kv_lora_rank"),
        ("rope_interleave", False, "rope_interleave"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path: Path, setting: str, value: object, reason: str) -> None:
    write_random_model(tmp_path, MLA, seed=5)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {setting: value}))

    with pytest.raises(ConfigError, match=reason):
        read_model_config(tmp_path)
