"""SGLang's serving benchmark against `hicache serve`: several turns, shared system prompts, with L3 off and on.

Each round starts a server with an empty store, lets the client run, starts another server on the same store and lets
the client ask the same again: what a replica sees that was restarted, or has just been added.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environments import PEERS
from benchmarks.rows import Served
from benchmarks.runner import Settings, say
from hicache_storage.engine_integration.reference_engine.model_folder import default_cache, find_model

_READY_S = 300.0
_CLIENT_S = 1800.0
_STOP_S = 60.0
_MOST_TOKENS = 16384
_STORES = ("off", "file")
_MOMENTS = ("first server", "restarted server")


@dataclass(frozen=True, slots=True)
class Traffic:
    """What SGLang's client sends: conversations of some turns, a few of which begin with the same system prompt.

    Attributes:
        concurrency: conversations at the same time.
    """

    groups: int = 4
    prompts_per_group: int = 2
    turns: int = 3
    system_tokens: int = 1024
    question_tokens: int = 64
    answer_tokens: int = 16
    concurrency: int = 2

    @property
    def requests(self) -> int:
        return self.groups * self.prompts_per_group * self.turns

    def flags(self) -> list[str]:
        """Return the client's flags for it."""
        shared = {
            "num-groups": self.groups,
            "prompts-per-group": self.prompts_per_group,
            "num-turns": self.turns,
            "system-prompt-len": self.system_tokens,
            "question-len": self.question_tokens,
            "output-len": self.answer_tokens,
        }
        flags = [part for name, value in shared.items() for part in (f"--gsp-{name}", str(value))]
        return ["--dataset-name", "generated-shared-prefix", *flags, "--max-concurrency", str(self.concurrency)]


_SMALL = Traffic(groups=1, prompts_per_group=1, turns=2, system_tokens=256, answer_tokens=4, concurrency=1)


def bench_serving(settings: Settings) -> list[Served]:
    """Raises ValueError where SGLang's environment is not installed, or a request failed."""
    peer = PEERS["sglang"]
    if not peer.is_installed:
        raise ValueError("bench_serving needs SGLang's client: python -m benchmarks peers install sglang")
    traffic = _SMALL if settings.small else Traffic()
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for number in range(1 if settings.small else settings.rounds):
        for store in _STORES if number % 2 == 0 else reversed(_STORES):
            with tempfile.TemporaryDirectory(dir=settings.scratch) as folder:
                for moment in _MOMENTS:
                    say(f"bench_serving: round {number + 1}, L3 {store}, {moment}")
                    with _server(Path(folder), store) as url:
                        found.setdefault((store, moment), []).append(ask(url, Path(folder), traffic))
    return [_row(settings, traffic, store, moment, found[store, moment]) for store in _STORES for moment in _MOMENTS]


def _row(settings: Settings, traffic: Traffic, store: str, moment: str, runs: Sequence[dict[str, float]]) -> Served:
    def median(name: str) -> float:
        return statistics.median(run[name] for run in runs)

    return Served(
        case="bench_serving",
        store=store,
        moment=moment,
        client=PEERS["sglang"].requirement,
        traffic=" ".join(traffic.flags()),
        requests=traffic.requests,
        rounds=len(runs),
        prompt_tokens=int(median("prompt_tokens")),
        cached_device=int(median("device")),
        cached_host=int(median("host")),
        cached_store=int(median("storage")),
        median_ttft_s=median("median_ttft_ms") / 1000,
        mean_ttft_s=median("mean_ttft_ms") / 1000,
        p99_ttft_s=median("p99_ttft_ms") / 1000,
        duration_s=median("duration"),
        provenance=settings.provenance,
    )


@contextmanager
def _server(folder: Path, store: str) -> Iterator[str]:
    """Yield the URL of a new `hicache serve` whose store, if any, lies in *folder*."""
    flags = ["--port", "0", "--enable-hierarchical-cache", "--max-total-tokens", str(_MOST_TOKENS)]
    if store != "off":
        where = json.dumps({"path": str(folder / "store")})
        flags += ["--hicache-storage-backend", store, "--hicache-storage-backend-extra-config", where]
        flags += ["--hicache-storage-prefetch-policy", "wait_complete"]
    environ = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    log = folder / "server.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "hicache_storage.cli", "serve", *flags],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environ,
        )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise ValueError(f"hicache serve did not start: {log.read_text()[-2000:]}")
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def ask(url: str, folder: Path, traffic: Traffic) -> dict[str, float]:
    """Return what SGLang's client measured, once every request has been answered."""
    peer = PEERS["sglang"]
    out = folder / "client.jsonl"
    out.unlink(missing_ok=True)
    model = find_model(None, default_cache())
    command = [str(peer.python), "-m", "sglang.benchmark.serving", "--backend", "sglang-oai-chat", "--base-url", url]
    command += ["--model", model.name, "--tokenizer", str(model.folder), "--cache-report", "--seed", "1"]
    command += [
        *traffic.flags(),
        "--warmup-requests",
        "0",
        "--disable-tqdm",
        "--output-details",
        "--output-file",
        str(out),
    ]
    done = subprocess.run(
        command, cwd=folder, env=peer.environ(), capture_output=True, text=True, timeout=_CLIENT_S, check=False
    )
    if done.returncode or not out.is_file():
        raise ValueError(f"SGLang's client failed with {done.returncode}: {done.stderr[-2000:] or done.stdout[-2000:]}")
    result = json.loads(out.read_text())
    errors = [error for error in result["errors"] if error]
    if errors or result["completed"] != traffic.requests:
        raise ValueError(f"{result['completed']} of {traffic.requests} requests were answered: {errors[:1]}")
    report = result["cache_report"]
    by_tier = {tier: float(report[f"{tier}_cached_tokens"] or 0) for tier in ("device", "host", "storage")}
    figures = {name: float(result[name]) for name in ("median_ttft_ms", "mean_ttft_ms", "p99_ttft_ms", "duration")}
    return by_tier | figures | {"prompt_tokens": float(report["total_prompt_tokens"])}
