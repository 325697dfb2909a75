"""One store, two engines: what vLLM has stored the reference engine restores, and the other way round."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.reference_engine.client import EngineClient
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig, StoreTarget
from hicache_storage.engine_integration.reference_engine.messages import Flush, Generate
from tests.engine_integration.reference_engine.asking import Answer, answered, ask
from tests.engines.vllm.serving import BLOCK_TOKENS, Serving, connector
from tests.tools.link_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("served")]

PROMPT_TOKENS = 400
RESTORED = (PROMPT_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
NAMES = {"model_id": "smollm2", "weights_revision": "as-converted", "layer_partition": 15, "head_partition": 1}
NEW_TOKENS = 8


def reference_engine(model: Path, topology: str, store: Path) -> EngineClient:
    return EngineClient(
        EngineConfig(
            model=str(model),
            topology=topology,
            page_tokens=BLOCK_TOKENS,
            store=StoreTarget(backend=f"file://{store}"),
            tiers=TierOptions(prefetch_policy="wait_complete", prefetch_threshold_tokens=BLOCK_TOKENS),
            **NAMES,  # type: ignore[arg-type]
        )
    )


def said(engine: EngineClient, prompt: list[int]) -> Answer:
    return ask(engine, Generate("one", tuple(prompt), NEW_TOKENS, ignore_eos=True))["one"]


@pytest.fixture
def prompt(smollm2: Path) -> list[int]:
    text = (ROOT / "LICENSE").read_text()
    ids: list[int] = Tokenizer.from_file(str(smollm2 / "tokenizer.json")).encode(text).ids
    return ids[:PROMPT_TOKENS]


def test_vllm_and_the_reference_engine_read_each_others_pages(smollm2: Path, prompt: list[int], tmp_path: Path) -> None:
    by_vllm, by_reference = tmp_path / "by-vllm", tmp_path / "by-reference"
    with reference_engine(smollm2, "tp3pp2", by_reference) as engine:
        computed = said(engine, prompt)
        assert answered(engine, Flush(0)).error is None
    with Serving(smollm2, connector({"backend": f"file://{by_reference}", **NAMES})) as vllm:
        restored = vllm.ask(prompt, NEW_TOKENS)
    with Serving(smollm2, connector({"backend": f"file://{by_vllm}", **NAMES})) as vllm:
        expected = vllm.ask(prompt, NEW_TOKENS)
    with reference_engine(smollm2, "tp1pp3", by_vllm) as engine:
        taken_over = said(engine, prompt)

    assert (expected.cached, computed.cached) == (0, (0, 0, 0))
    assert (restored.cached, taken_over.cached) == (RESTORED, (0, 0, RESTORED))
    assert list(expected.tokens) == list(restored.tokens) == taken_over.tokens == computed.tokens
