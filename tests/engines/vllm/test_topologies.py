"""One rank stores, two ranks restore and store, one rank restores: real engines of both sizes over one store."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.engines.vllm.serving import BLOCK_TOKENS, Serving, connector

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("served")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small seeded Llama with two KV heads, sure enough of its answers not to mind another order of sums."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.2,
    )
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_any_tp_size_restores_what_another_has_stored(
    vllm: None, model: Path, tmp_path: Path, rng: random.Random
) -> None:
    first, second = ([rng.randrange(512) for _ in range(300)] for _ in range(2))
    restored = 299 // BLOCK_TOKENS * BLOCK_TOKENS
    options = {"backend": f"file://{tmp_path}", "fleet": "tp2", "page_tokens": BLOCK_TOKENS}
    settings = {"skip_tokenizer_init": True}
    two = settings | {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}

    with Serving(model, connector(options), **settings) as serving:
        by_one = serving.ask(first)
    with Serving(model, connector(options), **two) as serving:
        by_two = [serving.ask(first), serving.ask(second)]
    with Serving(model, connector(options), **settings) as serving:
        again = [serving.ask(second), serving.ask(second, cache_salt="cold")]

    assert by_one.tokens == by_two[0].tokens
    assert by_two[1].tokens == again[0].tokens == again[1].tokens
    assert [answer.cached for answer in (by_one, *by_two, *again)] == [0, restored, 0, restored, 0]
    names = {path.name for path in tmp_path.rglob("*_L0-4_H*")}
    assert {name.rpartition("_H")[2][:1] for name in names} == {"0", "1"}
