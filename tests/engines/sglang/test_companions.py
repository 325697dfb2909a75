"""Hybrid models: what lies beside the KV of full attention is stored, found and restored with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType

from tests.engines.sglang.hybrid import HybridStack
from tests.engines.sglang.storages import objects, ours

SWA, MAMBA = ComponentType.SWA, ComponentType.MAMBA
PAGES = 6


@contextmanager
def running(folder: Path, companion: ComponentType) -> Iterator[HybridStack]:
    stack = HybridStack(ours(folder), companion)
    try:
        yield stack
    finally:
        stack.close()


@pytest.mark.parametrize("companion", [SWA, MAMBA])
def test_a_companion_comes_back_to_the_byte(tmp_path: Path, companion: ComponentType) -> None:
    with running(tmp_path, companion) as writer:
        tokens = writer.tokens(PAGES)
        writer.store_prompt(tokens, seed=3)

    with running(tmp_path, companion) as reader:
        assert reader.prefetch(tokens) == len(tokens)
        assert reader.wrong_parts(tokens, seed=3) == []


@pytest.mark.parametrize("companion", [SWA, MAMBA])
def test_a_prompt_without_its_companion_is_not_restored_past_it(tmp_path: Path, companion: ComponentType) -> None:
    with running(tmp_path, companion) as writer:
        tokens = writer.tokens(PAGES)
        hashes = writer.store_prompt(tokens, seed=3)
    kv_digest = objects(tmp_path, hashes[0])[0].name.split("_")[1]
    beside = [path for path in objects(tmp_path, hashes[-1]) if kv_digest not in path.name]
    assert beside
    for path in beside:
        path.unlink()

    with running(tmp_path, companion) as reader:
        assert reader.prefetch(tokens) < len(tokens)
        assert reader.threads_are_alive()
