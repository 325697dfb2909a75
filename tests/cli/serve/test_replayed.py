"""`hicache replay --url`: a recorded trace is sent to a server again, and its answers are compared."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hicache_storage.engine_integration.reference_engine.messages import Generate
from hicache_storage.testing.services.process import ReservedPort
from tests.cli.running import Ended, Hicache
from tests.cli.serve.running_server import Options, RunningServer, running

COMPLETIONS = "/v1/completions"
REQUESTS: list[dict[str, object]] = [
    {"prompt": "a" * 40, "max_tokens": 6, "temperature": 0},
    {"prompt": "a" * 40 + "bcd", "max_tokens": 5, "seed": 11, "top_p": 0.5, "temperature": 0.7, "stop_token_ids": [3]},
    {"prompt": [97, 256, 98], "max_tokens": 9, "temperature": 0},
    {"prompt": [97, 256, 98], "max_tokens": 3, "ignore_eos": True, "lora_id": "l", "cache_salt": "s", "seed": 5},
]

Replay = Callable[..., Ended]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """What a server recorded of `REQUESTS`."""
    path = tmp_path / "trace.jsonl"
    with running(Options(record_path=path)) as server:
        for request in REQUESTS:
            assert server.post(COMPLETIONS, **request).status == 200
    return path


@pytest.fixture
def replay(server: RunningServer, trace: Path, hicache: Hicache) -> Replay:
    def run(*flags: str) -> Ended:
        return hicache("replay", "--url", server.url, "--trace", str(trace), *flags)

    return run


def write_lines(path: Path, *lines: dict[str, object]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@contextmanager
def other_server(line_end: str) -> Iterator[str]:
    """Give the URL of a server of somebody else's, which answers everything with tokens 5 and 6."""
    choices = [{"choices": [{"index": 0, "token_ids": [token]}], "usage": None} for token in (5, 6)]
    lines = [": ping", "", *(f"data: {json.dumps(one)}{line_end}" for one in choices), "data: [DONE]", ""]
    answers = {"GET": b'{"data": [{"id": "theirs"}]}', "POST": line_end.join(lines).encode()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answers[self.command])))
            self.end_headers()
            self.wfile.write(answers[self.command])

        do_POST = do_GET  # noqa: N815 - the name that the library calls

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def generated(server: RunningServer, number: int) -> list[Generate]:
    return server.engine.wait_for(Generate, number)


def test_a_server_gets_the_same_requests_in_the_same_order(server: RunningServer, trace: Path, replay: Replay) -> None:
    ended = replay("--concurrency", "1", "--json")

    assert ended.status == 0, ended.err
    first, second, third, fourth = generated(server, 4)
    assert [list(one.tokens) for one in (first, second, third, fourth)] == [
        json.loads(line)["token_ids"] for line in trace.read_text().splitlines()
    ]
    assert (first.max_new_tokens, first.temperature) == (6, 0)
    assert (second.seed, second.top_p, second.temperature, second.stop_tokens) == (11, 0.5, 0.7, (3,))
    assert third.max_new_tokens == 2  # as many as came, the end of the text included
    assert (fourth.ignore_eos, fourth.lora_id, fourth.cache_salt, fourth.seed) == (True, "l", "s", 5)


def test_answers_and_hits_are_reported(replay: Replay, server: RunningServer) -> None:
    document = replay("--json").json()

    assert document["answers"] == {"same": 4, "different": 0, "not_compared": 0}
    assert document["hit_tokens"] == {"device": 2, "host": 4, "store": 6, "all": 12}
    assert (document["requests"], document["requests_failed"], document["prompt_tokens"]) == (4, 0, 89)
    assert (document["model"], document["url"]) == ("toy", server.url)
    for times in ("first_token_s", "answer_s", "late_s"):
        assert set(document[times]) == {"median", "90 %", "99 %", "most"}  # type: ignore[call-overload]


def test_the_report_is_tables(replay: Replay) -> None:
    ended = replay("--speed", "max")

    assert (ended.status, ended.err) == (0, "")
    rows = [line.split() for line in ended.out.splitlines()]
    assert ["all", "hits", "12", "13.48"] in rows
    assert ["same", "4"] in rows
    assert ["seconds", "median", "90", "%", "99", "%", "most"] in rows


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_another_answer_than_the_recorded_one_is_told(trace: Path, replay: Replay, as_json: tuple[str, ...]) -> None:
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    lines[1]["output_ids"][-1] += 1
    write_lines(trace, *lines)

    ended = replay(*as_json)

    assert ended.status == 4
    if as_json:
        assert ended.json()["different"] == [2]
        assert ended.json()["answers"] == {"same": 3, "different": 1, "not_compared": 0}
    else:
        assert "different: request 2 of the trace" in ended.out


def test_a_request_that_fails_costs_itself_alone(trace: Path, replay: Replay) -> None:
    write_lines(
        trace,
        {"token_ids": list(b"!refuse"), "output_length": 2},
        {"token_ids": list(b"abc"), "output_length": 2},
        {"token_ids": [1] * 300, "output_length": 1},
    )

    ended = replay("--json")

    assert ended.status == 3
    failures = ended.json()["failures"]
    assert isinstance(failures, dict)
    assert (ended.json()["requests"], ended.json()["requests_failed"]) == (3, 2)
    assert any("no room for it" in reason for reason in failures)
    assert any(reason.startswith("HTTP 400: this model takes") for reason in failures)
    assert ended.json()["answers"] == {"same": 0, "different": 0, "not_compared": 1}


def test_a_line_without_an_answer_asks_for_one_of_its_length(
    server: RunningServer, trace: Path, replay: Replay
) -> None:
    write_lines(trace, {"token_ids": [97, 256], "output_length": 7}, {"token_ids": [97, 256]})

    assert replay("--concurrency", "1").status == 0

    assert [(one.max_new_tokens, one.ignore_eos) for one in generated(server, 2)] == [(7, True), (1, True)]


@pytest.mark.parametrize(
    ("flags", "waits"), [((), [1e6, 3e6]), (("--speed", "10"), [1e5, 3e5]), (("--speed", "max"), [])], ids=str
)
def test_requests_are_sent_at_their_times(
    trace: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], waits: list[float]
) -> None:
    # So many that what passes meanwhile is nothing.
    write_lines(trace, *({"token_ids": [97], "timestamp": 1e9 * at} for at in (0, 1, 3)))
    asked: list[float] = []
    sleep = asyncio.sleep

    async def at_once(seconds: float) -> None:
        asked.append(seconds)
        await sleep(0)

    monkeypatch.setattr("hicache_storage.cli.replay.resend.asyncio.sleep", at_once)

    assert replay(*flags).status == 0

    # Less by what has passed since the start.
    assert [round(seconds, -4) for seconds in asked if seconds > 50] == waits


def test_no_more_requests_are_under_way_than_allowed(server: RunningServer, trace: Path, replay: Replay) -> None:
    write_lines(trace, *({"token_ids": list(b"!hold"), "output_length": 2} for _ in range(3)))

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(replay, "--speed", "max", "--concurrency", "2")
        generated(server, 2)
        assert len([one for one in server.engine.commands if isinstance(one, Generate)]) == 2
        server.engine.release()
        generated(server, 3)
        server.engine.release()
        assert ended.result(60).status == 0


def test_other_servers_may_end_lines_as_http_does_and_send_comments(trace: Path, hicache: Hicache) -> None:
    write_lines(trace, {"token_ids": [97, 256], "output_ids": [5, 6]})

    with other_server("\r\n") as url:
        ended = hicache("replay", "--url", url, "--trace", str(trace), "--json")

    assert ended.status == 0, ended.err
    assert ended.json()["answers"] == {"same": 1, "different": 0, "not_compared": 0}


def test_a_server_that_is_not_there_is_unreachable(trace: Path, hicache: Hicache) -> None:
    nobody = ReservedPort()
    url = f"http://127.0.0.1:{nobody.number}"

    ended = hicache("replay", "--url", url, "--trace", str(trace))

    assert (ended.status, ended.out) == (3, "")
    assert f"no server that lists its models at {url}" in ended.err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--url", "http://x", "--trace", "{trace}", "--fleet", "tp2"), "--fleet is for a replay without --url"),
        (("--url", "http://x", "--trace", "{trace}", "--bytes"), "--bytes is for a replay without --url"),
        (("--trace", "{trace}", "--speed", "2"), "--speed is for a replay with --url"),
        (("--trace", "{trace}", "--url", ""), "--url '': expected a server such as http://127.0.0.1:30000"),
        (("--trace", "{trace}", "--url", "kv:30000"), "--url 'kv:30000': expected a server such as http"),
        (("--url", "http://x"), "--url needs the --trace that a server has recorded"),
        (("--url", "http://x", "--trace", "{trace}", "--speed", "fast"), "--speed fast: expected a number above 0"),
        (("--url", "http://x", "--trace", "{trace}", "--speed", "0"), "--speed 0: expected a number above 0"),
        (("--url", "http://x", "--trace", "{trace}", "--concurrency", "0"), "--concurrency 0: expected at least 1"),
    ],
)
def test_flags_that_mean_nothing_are_refused(
    trace: Path, hicache: Hicache, flags: tuple[str, ...], reason: str
) -> None:
    ended = hicache("replay", *(flag.format(trace=trace) for flag in flags))

    assert (ended.status, ended.out) == (2, "")
    assert reason in ended.err


def test_a_trace_of_block_ids_cannot_be_sent(trace: Path, hicache: Hicache) -> None:
    write_lines(trace, {"input_length": 3, "hash_ids": [1]})

    ended = hicache("replay", "--url", "http://x", "--trace", str(trace))

    assert ended.status == 2
    assert "has hash_ids; a server can only be sent the token_ids of a recorded trace" in ended.err
