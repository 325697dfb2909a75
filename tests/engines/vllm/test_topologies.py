"""Each size stores, all others restore it: real engines with ranks and stages over one store."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.engines.vllm.serving import BLOCK_TOKENS, Serving, connector
from tests.engines.vllm.small_models import VOCABULARY, save_llama

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("served")]


def test_any_size_restores_what_another_has_stored(vllm: None, tmp_path: Path, rng: random.Random) -> None:
    model, store = save_llama(tmp_path / "model"), tmp_path / "kv"
    by_one, by_ranks, by_stages = ([rng.randrange(VOCABULARY) for _ in range(300)] for _ in range(3))
    restored = 299 // BLOCK_TOKENS * BLOCK_TOKENS
    transfer = connector({"backend": f"file://{store}", "fleet": "tp2,pp2", "page_tokens": BLOCK_TOKENS})
    one: dict[str, object] = {"skip_tokenizer_init": True}
    ranks = one | {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    stages = one | {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}

    with Serving(model, transfer, **one) as serving:
        first = [serving.ask(by_one)]
    with Serving(model, transfer, **ranks) as serving:
        second = [serving.ask(by_one), serving.ask(by_ranks)]
    with Serving(model, transfer, **stages) as serving:
        third = [serving.ask(by_one), serving.ask(by_ranks), serving.ask(by_stages)]
    with Serving(model, transfer, **one) as serving:
        fourth = [serving.ask(by_ranks), serving.ask(by_stages)]
        cold = [serving.ask(prompt, cache_salt="cold") for prompt in (by_one, by_ranks, by_stages)]

    assert [answer.cached for answer in first + second] == [0, restored, 0]
    assert [answer.cached for answer in third + fourth] == [restored, restored, 0, restored, restored]
    assert {answer.tokens for answer in (*first, second[0], third[0], cold[0])} == {cold[0].tokens}
    assert {answer.tokens for answer in (second[1], third[1], fourth[0], cold[1])} == {cold[1].tokens}
    assert {answer.tokens for answer in (third[2], fourth[1], cold[2])} == {cold[2].tokens}
    suffixes = {path.name.partition("_L")[2] for path in store.rglob("*_L*")}
    assert {suffix[:6] for suffix in suffixes} == {"0-2_H0", "0-2_H1", "2-4_H0", "2-4_H1"}
