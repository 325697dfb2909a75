"""What is restored is what the engine computed, whatever the kind of KV, of request and of scheduling."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.vllm.serving import BLOCK_TOKENS, Adapter, Serving, connector
from tests.engines.vllm.small_models import VOCABULARY, save_adapter, save_latent, save_llama

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("served")]

PROMPT_TOKENS = 300
RESTORED = (PROMPT_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
SETTINGS = {"skip_tokenizer_init": True}


@pytest.fixture
def prompt(rng: random.Random) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    return [(name, number, str(save_adapter(folder / name, number))) for number, name in enumerate(("one", "two"), 1)]


@pytest.fixture(scope="module")
def crowded(vllm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """An engine with few blocks that computes prompts in pieces, takes adapters and keeps no KV itself."""
    folder = tmp_path_factory.mktemp("crowded")
    options: dict[str, object] = {"backend": f"file://{folder / 'kv'}"}
    settings = {"num_gpu_blocks_override": 24, "max_num_batched_tokens": 64, "enable_prefix_caching": False}
    loras = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
    model = save_llama(folder / "model")
    with Serving(model, connector(options), max_model_len=512, **settings, **loras, **SETTINGS) as serving:
        yield serving


def test_adapters_and_their_model_restore_each_its_own(
    crowded: Serving, adapters: list[Adapter], prompt: list[int]
) -> None:
    computed = [crowded.ask(prompt, adapter=adapter) for adapter in (None, *adapters)]
    crowded.settle()
    restored = [crowded.ask(prompt, adapter=adapter) for adapter in (None, *adapters)]

    assert [answer.cached for answer in computed] == [0, 0, 0]
    assert [answer.cached for answer in restored] == [RESTORED] * 3
    assert [answer.tokens for answer in restored] == [answer.tokens for answer in computed]
    assert len({answer.tokens for answer in computed}) == 3


def test_store_that_is_reset_has_nothing_and_fills_again(crowded: Serving, prompt: list[int]) -> None:
    crowded.ask(prompt)
    crowded.reset()

    computed = crowded.ask(prompt)
    crowded.settle()
    restored = crowded.ask(prompt)

    assert (computed.cached, restored.cached) == (0, RESTORED)


def test_preempted_requests_say_the_same(crowded: Serving, rng: random.Random) -> None:
    """Of four prompts of 7 blocks three fit, and of their answers fewer: they take 8 blocks each."""
    prompts = [[rng.randrange(VOCABULARY) for _ in range(200)] for _ in range(4)]

    alone = [crowded.ask(prompt, 40, cache_salt="alone") for prompt in prompts]
    together = crowded.ask_all(prompts, 40)
    crowded.settle()
    again = crowded.ask_all(prompts, 40)

    assert [answer.cached for answer in alone] == [0] * 4
    assert [answer.cached for answer in again] == [199 // BLOCK_TOKENS * BLOCK_TOKENS] * 4
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    assert [answer.tokens for answer in again] == [answer.tokens for answer in alone]


@pytest.mark.parametrize("kind", ["latent", "fp8"])
def test_restored_kv_is_what_vllm_would_have_kept(vllm: None, tmp_path: Path, prompt: list[int], kind: str) -> None:
    """In bfloat16 a computed prompt may end in other tokens than a kept one, so kept is compared with restored."""
    model = {"latent": save_latent, "fp8": save_llama}[kind](tmp_path / "model")
    kv_dtype = {"latent": "auto", "fp8": "fp8"}[kind]
    options = {"backend": f"file://{tmp_path / 'kv'}", "page_tokens": BLOCK_TOKENS}

    with Serving(model, connector(options), dtype="bfloat16", kv_cache_dtype=kv_dtype, **SETTINGS) as serving:
        serving.ask(prompt)
        serving.settle()
        kept = serving.ask(prompt, 24)
        loaded = serving.counts().get("pages_loaded", 0)
        serving.forget()
        restored = serving.ask(prompt, 24)
        reloaded = serving.counts()["pages_loaded"]

    assert (loaded, reloaded) == (0, RESTORED // BLOCK_TOKENS)
    assert kept.cached == restored.cached == RESTORED
    assert kept.tokens == restored.tokens
