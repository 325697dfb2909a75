"""`hicache serve` on a small random model, as a process, and a client that looks at tokens, stores and metrics."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from hicache_storage.engine_integration.reference_engine.random_model import RandomShape, write_random_model
from tests.cli.running import HICACHE, environment

SHAPE = RandomShape(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, mlp_size=32)
FLAGS = """--tp-size 2 --enable-hierarchical-cache --page-size 4 --chunked-prefill-size 4 --max-total-tokens 256
--hicache-size 4MiB --hicache-storage-prefetch-policy wait_complete --prefetch-threshold-tokens 4 --port 0"""
STORED = 40
BACKEND = "/hicache/storage-backend"
_PATIENCE_S = 60.0


class Server:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def answer(self, number: int) -> tuple[list[int], dict[str, int]]:
        """Return the tokens that a prompt of its own number is answered with, and its cached tokens by tier."""
        prompt = [(number * 31 + 7 * at) % 256 for at in range(STORED + 3)]
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "return_token_ids": True}
        document = json.loads(self._send("POST", "/v1/completions", body))
        return document["choices"][0]["token_ids"], document["usage"]["prompt_tokens_details"]["cached_tokens_by_tier"]

    def answer_from_store(self, number: int) -> list[int]:
        """Return the tokens of a prompt once all that can be stored of it comes from the store."""
        give_up_at = time.monotonic() + _PATIENCE_S
        while time.monotonic() < give_up_at:
            self.forget()
            tokens, cached = self.answer(number)
            if cached == {"device": 0, "host": 0, "store": STORED}:
                return tokens
        raise AssertionError(f"nothing comes back from the store: {self.metrics()}")

    def forget(self) -> None:
        """Have device and host forget what they have, after it was stored."""
        self._send("POST", "/flush_cache", {})

    def attach(self, backend: str, **options: object) -> None:
        self.ask_to_attach(backend, options)

    def ask_to_attach(self, backend: str, options: Mapping[str, object], *, must_answer: bool = True) -> None:
        self._send("PUT", BACKEND, {"backend": backend, "extra_config": options, "must_answer": must_answer})

    def detach(self) -> None:
        self._send("DELETE", BACKEND, None)

    def state(self) -> dict[str, object]:
        """Return what the server says of its store."""
        document: dict[str, object] = json.loads(self._send("GET", BACKEND, None))
        return document

    def metrics(self) -> dict[str, float]:
        """Return every sample by its name as the server writes it."""
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=_PATIENCE_S) as reply:
            families = text_string_to_metric_families(reply.read().decode())
        return {
            one.name + "".join(f" {label}" for _, label in sorted(one.labels.items())): one.value
            for family in families
            for one in family.samples
        }

    def counted(self, before: Mapping[str, float]) -> dict[str, float]:
        """Return what the samples have grown by since *before*, which `metrics` returned then."""
        return {name: value - before.get(name, 0) for name, value in self.metrics().items()}

    def _send(self, method: str, path: str, body: dict[str, object] | None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as reply:
            answer: bytes = reply.read()
            return answer


@contextmanager
def served(folder: Path, *flags: str) -> Iterator[Server]:
    """Run a server whose model is in *folder*; it is told to stop at the end, and does in order."""
    write_random_model(folder, SHAPE, seed=1)
    command = [HICACHE, "serve", "--model-path", str(folder), *FLAGS.split(), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stdout is not None
            yield Server(process.stdout.readline().strip())
            process.terminate()
            assert process.wait(_PATIENCE_S) == 0
        finally:
            process.kill()
