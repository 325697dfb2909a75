"""`hicache serve` with the reference engine and the article's own flags, over HTTP."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path

import pytest

from hicache_storage.engine_integration.reference_engine.random_model import RandomShape, write_random_model
from tests.cli.running import HICACHE, environment
from tests.processes import awaited

# The article's model: 60 layers, 8 KV heads; as narrow as can be.
SHAPE = RandomShape(num_layers=60, num_heads=8, num_kv_heads=8, head_dim=4, mlp_size=32, vocab_size=256)
ARTICLE = """--enable-hierarchical-cache --hicache-storage-backend file --hicache-storage-key-scheme unified
--hicache-storage-head-partition 2 --hicache-storage-layer-partition 30"""
OBJECTS_PER_PAGE = 8
PAGES = 2
PROMPT = [(7 * at) % 256 for at in range(16 * PAGES + 5)]


def answer(model: Path, store: Path, *flags: str) -> tuple[list[int], dict[str, int]]:
    """Return the tokens that a fresh server answers `PROMPT` with, and the tokens it had cached by tier."""
    extra = json.dumps({"path": str(store), "prefetch_threshold": 16})
    command = [HICACHE, "serve", "--model-path", str(model), "--port", "0", *ARTICLE.split(), *flags]
    command += ["--hicache-storage-backend-extra-config", extra, "--hicache-storage-prefetch-policy", "wait_complete"]
    command += ["--max-total-tokens", "256", "--hicache-size", "16MiB"]
    with awaited(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "return_token_ids": True}
            with urllib.request.urlopen(f"{url}/v1/completions", json.dumps(body).encode(), timeout=60) as reply:
                document = json.load(reply)
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
    return document["choices"][0]["token_ids"], document["usage"]["prompt_tokens_details"]["cached_tokens_by_tier"]


@pytest.mark.slow
def test_article_s_line_stores_for_one_topology_what_another_reads(tmp_path: Path) -> None:
    model, store = tmp_path / "model", tmp_path / "kv"
    model.mkdir()
    write_random_model(model, SHAPE, seed=1)

    computed, cached = answer(model, store, "--pp-size", "2")
    stored = [path for path in store.rglob("*_L*") if path.is_file()]
    restored, found = answer(model, store, "--tp-size", "2")

    assert (cached, found) == ({"device": 0, "host": 0, "store": 0}, {"device": 0, "host": 0, "store": 16 * PAGES})
    assert len(stored) == OBJECTS_PER_PAGE * PAGES
    assert restored == computed
