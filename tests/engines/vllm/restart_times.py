"""``python -m tests.engines.vllm.restart_times``: the time to the first token after a restart, as a table.

SmolLM2 in float32 on stock vLLM for CPUs. Cold: vLLM without a connector. Restored: an engine that finds the prompt in a store
that an earlier engine process has filled. Each figure is the median of several, each after vLLM forgot its own KV.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from hicache_storage.engine_integration.reference_engine.model_folder import default_cache, find_model
from hicache_storage.testing.services.redis_server import RedisServer
from hicache_storage.testing.services.seaweedfs import SeaweedFS
from tests.engines.vllm.serving import Answer, Serving, connector, s3_options
from tests.tools.link_tree import ROOT

PROMPT_TOKENS = 1090
REPEATS = 5


def median_of(serving: Serving, prompt: list[int]) -> tuple[float, Answer]:
    """Return the median time to the first token, and the last answer."""
    answers = []
    for _ in range(REPEATS):
        serving.forget()
        answers.append(serving.ask(prompt, max_tokens=1))
    return statistics.median(answer.elapsed_s for answer in answers), answers[-1]


def main() -> int:
    """Print the table; return 1 if an engine says something else than vLLM alone."""
    model = find_model(None, default_cache())
    model.prepare(timeout_s=300.0)
    text = (ROOT / "LICENSE").read_text()
    prompt = Tokenizer.from_file(str(model.folder / "tokenizer.json")).encode(text).ids[:PROMPT_TOKENS]
    with Serving(model.folder, None) as bare:
        cold_s, expected = median_of(bare, prompt)
    rows = [f"| none, cold | 0 | {cold_s:.2f} s | |"]
    same = True
    with tempfile.TemporaryDirectory() as folder, RedisServer() as redis, SeaweedFS() as s3:
        stores: dict[str, dict[str, object]] = {
            "file": {"backend": f"file://{Path(folder)}"},
            "redis": {"backend": redis.url},
            "s3 (SeaweedFS)": s3_options(s3),
        }
        for name, options in stores.items():
            with Serving(model.folder, connector(options)) as first:
                first.ask(prompt, max_tokens=1)
            with Serving(model.folder, connector(options)) as second:
                restored_s, answer = median_of(second, prompt)
            same = same and answer.tokens == expected.tokens
            rows.append(f"| {name} | {answer.cached} | {restored_s:.2f} s | {cold_s / restored_s:.1f} x |")
    print("| store | tokens restored | time to first token | faster |", "|---|---|---|---|", *rows, sep="\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
