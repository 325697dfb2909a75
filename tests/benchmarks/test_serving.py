"""SGLang's client against `hicache serve`: what its report becomes, and that a run which lost a request is none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.cases import serving
from benchmarks.cases.serving import Traffic
from benchmarks.machine import Provenance
from benchmarks.rows import Served, from_csv, to_csv
from benchmarks.tables import serving as table

TRAFFIC = Traffic(groups=1, prompts_per_group=1, turns=2)
REPORT = {
    "errors": ["", ""],
    "completed": 2,
    "median_ttft_ms": 20.0,
    "mean_ttft_ms": 30.0,
    "p99_ttft_ms": 40.0,
    "duration": 5.0,
    "cache_report": {
        "total_prompt_tokens": 800,
        "device_cached_tokens": 300,
        "host_cached_tokens": 0,
        "storage_cached_tokens": None,
    },
}


@pytest.fixture
def served(provenance: Provenance) -> Served:
    return Served(
        case="bench_serving",
        store="file",
        moment="restarted server",
        client="sglang==0.5.23",
        traffic="--max-concurrency 2",
        requests=24,
        rounds=3,
        prompt_tokens=20000,
        cached_device=9000,
        cached_host=0,
        cached_store=7000,
        median_ttft_s=0.1204,
        mean_ttft_s=0.2,
        p99_ttft_s=1.5,
        duration_s=12.34,
        provenance=provenance,
    )


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What SGLang's client writes in the place of a real one; a test changes it."""
    report: dict[str, object] = dict(REPORT)

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        Path(command[command.index("--output-file") + 1]).write_text(json.dumps(report))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return report


def test_row_comes_back_from_its_csv(served: Served) -> None:
    assert from_csv(Served, to_csv([served])) == [served]


def test_table_says_what_was_cached_where_and_how_to_repeat_it(served: Served) -> None:
    text = table([served])

    line = "| file | restarted server | 20,000 | 9,000 | 0 | 7,000 | 120 ms | 200 ms | 1,500 ms | 12.3 s |"
    assert line in text
    assert "`python -m sglang.benchmark.serving --max-concurrency 2`: 24 requests" in text


def test_report_of_the_client_is_read(answers: dict[str, object], tmp_path: Path) -> None:
    assert answers
    figures = serving.ask("http://localhost:1", tmp_path, TRAFFIC)

    assert figures == {
        "device": 300,
        "host": 0,
        "storage": 0,
        "median_ttft_ms": 20,
        "mean_ttft_ms": 30,
        "p99_ttft_ms": 40,
        "duration": 5,
        "prompt_tokens": 800,
    }


@pytest.mark.parametrize("change", [{"completed": 1}, {"errors": ["", "HTTP 500"]}])
def test_run_with_a_lost_request_gives_no_figures(
    answers: dict[str, object], change: dict[str, object], tmp_path: Path
) -> None:
    answers.update(change)

    with pytest.raises(ValueError, match="of 2 requests were answered"):
        serving.ask("http://localhost:1", tmp_path, TRAFFIC)
