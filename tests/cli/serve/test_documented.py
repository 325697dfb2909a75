"""The documentation's `hicache serve` lines start a server, on a free port, which answers the documentation's `curl` lines."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.processes import awaited

ADDRESS = "http://127.0.0.1:30000"
PATIENCE_S = 300


def lines_of(page: str, program: str) -> list[str]:
    """Return the commands of *page* that run *program*, each on one line."""
    return re.findall(rf"^{program} .*$", (ROOT / page).read_text(), re.MULTILINE)


def ask(line: str, url: str) -> bytes:
    """Return what the server at *url* answers to a ``curl`` line."""
    words = shlex.split(line.replace(ADDRESS, url))
    (target,) = [word for word in words if word.startswith(url)]
    values = dict(pairwise(words))
    headers = dict([values["-H"].split(": ")]) if "-H" in values else {}
    data = values["-d"].encode() if "-d" in values else None
    with urllib.request.urlopen(urllib.request.Request(target, data, headers), timeout=PATIENCE_S) as answer:
        body: bytes = answer.read()
    return body


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/reference-engine.md"])
def test_a_documented_server_answers_as_typed(page: str, tmp_path: Path) -> None:
    command = shlex.split(lines_of(page, "hicache serve")[0].replace("/mnt/kv", str(tmp_path)))
    environment = os.environ | {"HICACHE_FILE_PATH": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    program = [str(Path(sys.executable).parent / command[0]), *command[1:], "--port", "0"]

    with awaited(subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)) as server:
        assert server.stdout is not None
        url = server.stdout.readline().decode().strip()
        answers = [ask(line, url) for line in lines_of(page, "curl")] if url else []
        server.send_signal(signal.SIGTERM)
        _, log = server.communicate(timeout=PATIENCE_S)

    assert server.returncode == 0, log.decode()
    assert b'"finish_reason"' in answers[0]
    assert len(answers) == len(lines_of(page, "curl"))
