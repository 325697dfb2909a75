"""The server as a process: what it prints, which signals it heeds, how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.running import Hicache, environment
from tests.cli.serve.toy_folder import write_tokenizer, write_toy_folder
from tests.processes import awaited

_PATIENCE_S = 60


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = write_toy_folder(tmp_path / "toy")
    write_tokenizer(folder)
    return folder


@contextmanager
def started(model: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.cli.serve.fake_server", "--model-path", str(model), "--port", "0", *flags]
    with awaited(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def url_of(process: subprocess.Popen[str]) -> str:
    """Return what the server prints once it takes requests."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def post(url: str, **fields: object) -> dict[str, object]:
    with urllib.request.urlopen(url, json.dumps(fields).encode(), timeout=_PATIENCE_S) as answer:
        document: dict[str, object] = json.load(answer)
        return document


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_prints_its_url_serves_and_stops_when_told(model: Path, number: signal.Signals) -> None:
    with started(model) as process:
        url = url_of(process)
        answer = post(f"{url}/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=4)
        process.send_signal(number)
        out, err = process.communicate(timeout=_PATIENCE_S)

    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "user", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert (process.returncode, out) == (0, "")
    lines = [line.partition("] ")[2] for line in err.splitlines()]
    assert lines == [
        f"model: toy in {model}",
        "engine: starting tp1pp1 on cpu",
        f"ready: toy on {url}, up to 512 tokens a request",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_before_the_server_is_ready_interrupts(model: Path, tmp_path: Path, number: signal.Signals) -> None:
    with started(model, "--log-folder", str(tmp_path / "never")) as process:
        assert process.stderr is not None
        while "starting for ever" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(number)
        process.communicate(timeout=_PATIENCE_S)

    assert process.returncode == 130


def test_host_that_others_reach_without_a_token_is_warned_of(model: Path) -> None:
    with started(model, "--host", "0.0.0.0") as process:
        url = url_of(process)
        process.terminate()
        _, err = process.communicate(timeout=_PATIENCE_S)

    assert url.startswith("http://127.0.0.1:")
    assert "warning: --host 0.0.0.0 without --admin-token" in err


def test_wrong_usage_is_told_at_once(hicache: Hicache, model: Path, tmp_path: Path) -> None:
    contradiction = hicache("serve", "--model-path", str(model), "--hicache-storage-backend", "file")
    nothing = hicache("serve", "--model-path", str(tmp_path / "nowhere"), "--port", "0")

    assert (contradiction.status, nothing.status) == (2, 2)
    assert "--enable-hierarchical-cache" in contradiction.err
    assert "nowhere does not exist" in nothing.err


def test_help_shows_the_line_of_the_article(hicache: Hicache) -> None:
    ended = hicache("serve", "--help")

    assert ended.status == 0
    assert "--hicache-storage-head-partition 2 --hicache-storage-layer-partition 30" in ended.out


def test_package_that_is_missing_is_named_with_its_extra(
    hicache: Hicache, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hicache_storage.cli.serve.command._MODULES", ("aiohttp", "no_such_package"))

    ended = hicache("serve", "--model-path", str(model))

    assert ended.status == 2
    assert "serving needs no_such_package: pip install 'hicache-storage[server,demo]'" in ended.err
