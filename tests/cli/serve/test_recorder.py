"""The trace of served requests, and that `hicache replay` reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from hicache_storage.cli.serve.recorder import check_new
from hicache_storage.engine_integration.reference_engine.messages import Generate
from hicache_storage.engine_integration.replay import Trace
from hicache_storage.errors import ConfigError
from tests.cli.running import Hicache
from tests.cli.serve.running_server import Options, RunningServer, running
from tests.cli.serve.toy_tokenizer import EOS

COMPLETIONS = "/v1/completions"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


@pytest.fixture
def recording(trace: Path) -> Iterator[RunningServer]:
    with running(Options(record_path=trace)) as server:
        yield server


def lines(trace: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in trace.read_text().splitlines()]


def stop(server: RunningServer) -> None:
    server.order_stop()
    assert server.wait() == 0


def test_request_is_one_line_with_its_tokens(recording: RunningServer, trace: Path) -> None:
    recording.post(COMPLETIONS, prompt="abc", max_tokens=5, temperature=0)
    sampling = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "stop_token_ids": [5], "ignore_eos": True}
    recording.post(COMPLETIONS, prompt=[97, EOS], max_tokens=3, lora_id="l", cache_salt="s", **sampling)
    stop(recording)

    first, second = lines(trace)
    times = [cast("int", line.pop("timestamp")) for line in (first, second)]
    assert times[0] <= times[1]
    assert times[0] >= 0
    assert first == {
        "input_length": 3,
        "output_length": 5,
        "token_ids": [97, 98, 99],
        "output_ids": [97, 98, 99, 97, 98],
    }
    assert (
        second
        == {
            "input_length": 2,
            "output_length": 3,
            "token_ids": [97, EOS],
            "output_ids": [97, EOS, 97],
            "lora_id": "l",
            "cache_salt": "s",
        }
        | sampling
    )


def test_a_seed_that_no_request_named_is_recorded(recording: RunningServer, trace: Path) -> None:
    recording.post(COMPLETIONS, prompt="abc", max_tokens=1)
    stop(recording)

    [line] = lines(trace)
    assert line["temperature"] == 1.0
    assert isinstance(line["seed"], int)


def test_lines_are_in_the_order_of_arrival(recording: RunningServer, trace: Path) -> None:
    with ThreadPoolExecutor() as pool:
        first = pool.submit(recording.post, COMPLETIONS, prompt="!hold", max_tokens=3)
        recording.engine.wait_for(Generate)
        recording.post(COMPLETIONS, prompt="b", max_tokens=1)
        recording.engine.release()
        first.result(60)
    stop(recording)

    assert [line["output_length"] for line in lines(trace)] == [3, 1]


def test_request_that_was_cut_short_is_recorded_as_far_as_it_came(recording: RunningServer, trace: Path) -> None:
    recording.post(COMPLETIONS, prompt="!abort", max_tokens=9)
    stop(recording)

    assert [line["output_length"] for line in lines(trace)] == [1]


def test_replay_reads_the_trace(recording: RunningServer, trace: Path, hicache: Hicache) -> None:
    for text in ("a" * 100, "a" * 100 + "b"):
        recording.post(COMPLETIONS, prompt=text, max_tokens=2)
    stop(recording)

    assert [list(request.tokens) for request in Trace(trace)] == [[97] * 100, [97] * 100 + [98]]
    ended = hicache("replay", "--trace", str(trace), "--page-size", "16", "--json")
    assert ended.status == 0, ended.err


def test_trace_is_for_its_owner_alone(recording: RunningServer, trace: Path) -> None:
    stop(recording)

    assert trace.stat().st_mode & 0o777 == 0o600


def test_file_with_content_is_left_alone(trace: Path) -> None:
    trace.write_text("precious\n")

    with pytest.raises(ConfigError, match="has content already"):
        check_new(trace)

    assert trace.read_text() == "precious\n"


def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere/trace cannot be written: No such file"):
        check_new(tmp_path / "nowhere" / "trace")


def test_disk_that_fails_costs_the_trace_and_no_request() -> None:
    with running(Options(record_path=Path("/dev/full"))) as server:
        replies = [server.post(COMPLETIONS, prompt="a").status for _ in range(3)]
        counted = server.call("GET", "/metrics").body

    assert replies == [200] * 3
    assert b"hicache_requests_not_recorded_total" in counted
