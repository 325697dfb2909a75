"""/metrics and /health."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hicache_storage.engine_integration.reference_engine.messages import Generate
from tests.cli.serve.running_server import RunningServer

COMPLETIONS = "/v1/completions"


def samples(server: RunningServer) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample by its name and labels."""
    reply = server.call("GET", "/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(reply.body.decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def test_tokens_are_counted_by_tier(server: RunningServer) -> None:
    server.post(COMPLETIONS, prompt="abcdefgh", max_tokens=10)

    found = samples(server)
    assert found["hicache_prompt_tokens_total", ()] == 8
    assert found["hicache_generated_tokens_total", ()] == 10
    assert [found["hicache_cached_tokens_total", (("tier", tier),)] for tier in ("device", "host", "store")] == [
        1,
        2,
        3,
    ]


def test_requests_are_counted_by_how_they_ended(server: RunningServer) -> None:
    server.post(COMPLETIONS, prompt="ab", max_tokens=3)
    server.post(COMPLETIONS, prompt="ab", stop="b")
    server.post(COMPLETIONS, prompt="!refuse")
    server.post("/v1/chat/completions", messages=[{"role": "user", "content": "a"}], max_tokens=2)

    found = samples(server)
    ended = {labels: value for (name, labels), value in found.items() if name == "hicache_requests_total"}
    assert ended == {
        (("endpoint", "completions"), ("outcome", "length")): 1,
        (("endpoint", "completions"), ("outcome", "stop")): 1,
        (("endpoint", "completions"), ("outcome", "failed")): 1,
        (("endpoint", "chat/completions"), ("outcome", "length")): 1,
    }


def test_times_are_histograms_by_endpoint(server: RunningServer) -> None:
    server.post(COMPLETIONS, prompt=["ab", "cd"], max_tokens=3)

    found = samples(server)
    endpoint = ("endpoint", "completions")
    for name in ("hicache_time_to_first_token_seconds", "hicache_request_duration_seconds"):
        assert found[f"{name}_count", (endpoint,)] == 2
        assert found[f"{name}_bucket", (endpoint, ("le", "+Inf"))] == 2
        assert found[f"{name}_sum", (endpoint,)] > 0


def test_counters_of_the_engine_are_there_by_cause_and_tier(server: RunningServer) -> None:
    found = samples(server)

    assert found["hicache_engine_pages_hit_total", ()] == 7
    assert found["hicache_engine_read_failed_total", (("cause", "CorruptObject"),)] == 2
    assert found["hicache_engine_read_failed_total", (("cause", "StoreUnavailable"),)] == 1
    assert found["hicache_engine_cached_tokens_total", (("tier", "device"),)] == 5
    assert found["hicache_engine_host_pages", ()] == 12
    assert found["hicache_engine_up", ()] == 1


def test_calls_to_the_store_are_histograms_by_operation_and_result(server: RunningServer) -> None:
    found = samples(server)

    def of(kind: str, result: str, *more: tuple[str, str]) -> float:
        return found[
            f"hicache_engine_store_call_seconds_{kind}", tuple(sorted([*more, ("op", "read"), ("result", result)]))
        ]

    bounds = ["0.001", "0.005", "0.1", "0.5", "30", "+Inf"]
    assert [of("bucket", "done", ("le", bound)) for bound in bounds] == [0, 3, 3, 5, 5, 5]
    assert [of("bucket", "StoreUnavailable", ("le", bound)) for bound in bounds] == [0, 0, 0, 0, 0, 1]
    assert (of("count", "done"), of("sum", "done"), of("sum", "StoreUnavailable")) == (5, 0.61, 31)


def test_what_the_layer_metrics_counted_is_there_by_backend_operation_and_result(server: RunningServer) -> None:
    found = samples(server)

    def of(name: str, backend: str, op: str, *more: tuple[str, str]) -> float:
        return found[f"hicache_store_{name}", tuple(sorted([("backend", backend), ("op", op), *more]))]

    assert of("requests_total", "file", "read", ("result", "hit")) == 6
    assert of("requests_total", "file", "read", ("result", "CorruptObject")) == 1
    assert of("requests_total", 'a.b"c', "exists", ("result", "miss")) == 4
    assert of("bytes_total", "file", "read") == 4096
    assert [of("seconds_bucket", "file", "read", ("le", le)) for le in ("0.0005", "10.0", "+Inf")] == [2, 2, 3]
    assert (of("seconds_count", "file", "read"), of("seconds_sum", "file", "read")) == (3, 11.5)
    assert not any("store_metrics" in name for name, _ in found)


def test_what_it_counted_of_the_parts_of_a_store_is_there_by_part(server: RunningServer) -> None:
    found = samples(server)

    def of(name: str, part: str, *more: tuple[str, str]) -> float:
        return found[
            f"hicache_store_{name}", tuple(sorted([("backend", "file"), ("part", part), ("op", "read"), *more]))
        ]

    assert of("requests_total", "0", ("result", "miss")) == of("requests_total", "1", ("result", "hit")) == 5
    assert of("bytes_total", "1") == 320
    assert [of("seconds_bucket", "1", ("le", le)) for le in ("0.001", "0.0025", "+Inf")] == [0, 1, 1]
    assert of("seconds_sum", "1") == 0.002


def test_what_the_layer_metrics_counted_says_what_it_is(server: RunningServer) -> None:
    text = server.call("GET", "/metrics").body.decode()

    for name, kind in (("requests_total", "counter"), ("bytes_total", "counter"), ("seconds", "histogram")):
        assert text.count(f"# HELP hicache_store_{name} ") == 1
        assert f"# TYPE hicache_store_{name} {kind}\n" in text


def test_engine_that_does_not_answer_costs_only_its_own_counters(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.post(COMPLETIONS, prompt="ab", max_tokens=3)
    server.engine.be_mute()
    monkeypatch.setattr("hicache_storage.cli.serve.app._REPORT_TIMEOUT_S", 0.05)

    found = samples(server)

    assert found["hicache_engine_up", ()] == 0
    assert found["hicache_prompt_tokens_total", ()] == 2
    assert ("hicache_engine_pages_hit_total", ()) not in found


def test_request_that_runs_is_counted_as_running(server: RunningServer) -> None:
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, COMPLETIONS, prompt="!hold", max_tokens=2)
        server.engine.wait_for(Generate)
        assert samples(server)["hicache_requests_running", ()] == 1

        server.engine.release()

        assert answer.result(60).status == 200
        assert samples(server)["hicache_requests_running", ()] == 0


def test_server_that_takes_requests_is_healthy(server: RunningServer) -> None:
    reply = server.call("GET", "/health")

    assert (reply.status, reply.json()) == (200, {"status": "ok"})
