"""What a real server recorded is replayed: to the next server on the same store, and through the simulated tiers."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hicache_storage.engine_integration.reference_engine.random_model import RandomShape, write_random_model
from tests.cli.running import HICACHE, environment, run_process
from tests.processes import awaited

SHAPE = RandomShape(num_layers=4, num_heads=4, num_kv_heads=2, head_dim=8, mlp_size=32, vocab_size=256)
PAGE_TOKENS = 16
PREFIX = [(7 * at) % 256 for at in range(4 * PAGE_TOKENS)]
REQUESTS = [
    {"prompt": [*PREFIX, 1, 2, 3], "max_tokens": 6, "temperature": 0},
    {"prompt": [*PREFIX, 9], "max_tokens": 8, "temperature": 0.9},
    {"prompt": PREFIX[:40], "max_tokens": 4, "temperature": 0, "cache_salt": "mine"},
]


@contextmanager
def serving(model: Path, store: Path, *flags: str) -> Iterator[str]:
    """Give the URL of a fresh server of *model* on *store*, which ends well."""
    extra = json.dumps({"path": str(store), "prefetch_threshold": PAGE_TOKENS})
    command = [HICACHE, "serve", "--model-path", str(model), "--port", "0", "--page-size", str(PAGE_TOKENS)]
    command += ["--enable-hierarchical-cache", "--hicache-storage-backend", "file", "--hicache-size", "16MiB"]
    command += ["--hicache-storage-backend-extra-config", extra, "--hicache-storage-prefetch-policy", "wait_complete"]
    command += ["--hicache-storage-layer-partition", "4", "--hicache-storage-head-partition", "1"]
    started = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True, env=environment())
    with awaited(started) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
            process.terminate()
            assert process.wait(120) == 0
        finally:
            process.kill()


@pytest.mark.slow
def test_a_recorded_trace_gets_the_same_answers_from_the_next_server_with_hits_in_the_store(tmp_path: Path) -> None:
    model, store, trace = tmp_path / "model", tmp_path / "kv", tmp_path / "trace.jsonl"
    model.mkdir()
    write_random_model(model, SHAPE, seed=1)

    with serving(model, store, "--record-requests", str(trace)) as url:
        for request in REQUESTS:
            urllib.request.urlopen(f"{url}/v1/completions", json.dumps(request).encode(), timeout=120).close()
    with serving(model, store, "--tp-size", "2") as url:
        resent = run_process("replay", "--url", url, "--trace", str(trace), "--concurrency", "1", "--json")
    simulated = run_process("replay", "--trace", str(trace), "--page-size", str(PAGE_TOKENS), "--json")

    assert resent.status == 0, resent.err
    assert resent.json()["answers"] == {"same": 3, "different": 0, "not_compared": 0}
    # The second prompt finds on the device what the first one brought up from the store; the third shares nothing.
    assert resent.json()["hit_tokens"] == {"device": 64, "host": 0, "store": 64 + 32, "all": 160}
    total = simulated.json()["total"]
    assert isinstance(total, dict)
    assert total["hit_tokens"]["all"] == 64
