"""Reading traces: what ids stand for, and what is said of a line that is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hicache_storage.engine_integration.replay import Trace
from hicache_storage.errors import ConfigError
from tests.engine_integration.replay.traces import SLICE, write_trace


def prompts(path: Path) -> list[list[int]]:
    return [request.tokens.tolist() for request in Trace(path)]


def test_equal_ids_are_equal_tokens_and_no_token_has_two_ids(tmp_path: Path) -> None:
    first, second = prompts(write_trace(tmp_path / "t", (1024, [7, 8]), (1536, [7, 9, 8])))

    assert first[:512] == second[:512]
    assert first[512:] == second[1024:]
    assert len(set(first + second)) == 3 * 512


def test_a_partial_block_has_tokens_of_its_own(tmp_path: Path) -> None:
    first, second, whole = prompts(write_trace(tmp_path / "t", (600, [7, 8]), (600, [7, 8]), (1024, [7, 8])))

    assert first[:512] == second[:512] == whole[:512]
    assert set(first[512:]).isdisjoint(second[512:] + whole[512:])


def test_token_ids_stand_for_themselves(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text('{"timestamp": 2500, "token_ids": [5, 4294967295, 0]}\n')

    (request,) = Trace(path)

    assert request.tokens.tolist() == [5, 4294967295, 0]
    assert request.arrival_s == 2.5
    assert Trace(path).summary.block_tokens is None


def test_every_iteration_gives_the_same(tmp_path: Path) -> None:
    trace = Trace(write_trace(tmp_path / "t", (600, [3, 4]), (0, []), (512, [3])))

    assert list(trace) == list(trace)
    assert [len(request.tokens) for request in trace] == [600, 0, 512]


def test_the_summary_counts_what_is_replayed() -> None:
    lines = [json.loads(line) for line in SLICE.read_text().splitlines()]

    summary = Trace(SLICE, most_requests=100).summary

    assert summary.num_requests == 100
    assert summary.num_tokens == sum(line["input_length"] for line in lines[:100])
    assert summary.longest == max(line["input_length"] for line in lines[:100])
    assert summary.block_tokens == 512


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ('{"input_length": 600, "hash_ids": [1]}', "1 hash_ids for 600 tokens: expected 2"),
        ('{"hash_ids": [1]}', "input_length = None"),
        ('{"input_length": -1, "hash_ids": []}', "input_length = -1"),
        ('{"input_length": 3}', "either hash_ids with input_length, or token_ids"),
        ('{"input_length": 2, "token_ids": [1]}', "input_length = 2, but there are 1 token_ids"),
        ('{"input_length": 1, "hash_ids": ["a"]}', "Expected `int`"),
        ('{"token_ids": [4294967296]}', "token ids"),
        ('{"token_ids": [-1]}', "token ids"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = write_trace(tmp_path / "t", (5, [1]))
    if "token_ids" in line:
        path.write_text('{"token_ids": [1]}\n')
    path.write_text(f"{path.read_text()}{line}\n")

    with pytest.raises(ConfigError) as caught:
        list(Trace(path))

    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert reason in str(caught.value)


def test_a_file_has_one_kind_of_lines(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t", (5, [1]))
    path.write_text(f'{path.read_text()}{{"token_ids": [1]}}\n')

    with pytest.raises(ConfigError, match="share nothing"):
        Trace(path)


def test_an_empty_trace_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")

    with pytest.raises(ConfigError, match="no request"):
        Trace(tmp_path / "empty")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Trace(tmp_path / "missing")
