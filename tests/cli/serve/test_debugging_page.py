"""The sessions of docs/debugging.md: real servers with planted faults, which leave what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.running import HICACHE, environment
from tests.engine_integration.reference_engine.planted import PAGE
from tests.processes import awaited

ADDRESS = "http://127.0.0.1:30000"
PATIENCE_S = 300
Command = tuple[str, list[str]]
"""One line of a session, and what the page shows of its output."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def commands(session: str) -> list[Command]:
    """Return the commands of a console block, each on one line, with their output."""
    found: list[Command] = []
    for line in session.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found


def sessions() -> dict[str, list[Command]]:
    """Return all that is done with one server, by the fault that is planted in it."""
    found: dict[str, list[Command]] = {}
    for command in (command for block in blocks("console") for command in commands(block)):
        fault = re.match(r"FAULT=(\S+)", command[0])
        if fault is not None:
            found[fault[1]] = []
        next(reversed(found.values())).append(command)
    return found


def in_shell(folder: Path) -> dict[str, str]:
    path = f"{Path(HICACHE).parent}:{os.environ['PATH']}"
    return environment({"PATH": path, "HICACHE_FILE_PATH": str(folder / "default")})


def shows(expected: Sequence[str], lines: Sequence[str]) -> bool:
    """Return whether *lines* are those expected, whatever the numbers, digests and spaces; ``...`` is anything."""
    pattern = "".join(_pattern(line) for line in expected)
    return re.fullmatch(pattern, "".join(f"{_masked(line)}\n" for line in lines), re.DOTALL) is not None


def _pattern(line: str) -> str:
    if line == "...":
        return ".*"
    if line.endswith("..."):
        return re.escape(_masked(line.removesuffix("...").rstrip())) + "[^\n]*\n"
    return re.escape(f"{_masked(line)}\n")


def _masked(line: str) -> str:
    without_digests = re.sub(r"\b[0-9a-f]{16}\b", "X", line)
    return re.sub(r"\s+", " ", re.sub(r"\bentry \d+|\d{4}-\d\d-\d\d [\d:,]+|^ *\d+ ", "N ", without_digests)).strip()


def answer(line: str, url: str) -> list[str]:
    """Return what the server at *url* answers to a ``curl`` line."""
    words = shlex.split(line.replace(ADDRESS, url))
    data = dict(pairwise(words))["-d"].encode()
    try:
        with urllib.request.urlopen(words[1], data, timeout=PATIENCE_S) as reply:
            body: bytes = reply.read()
    except urllib.error.HTTPError as error:
        with error:
            body = error.read()
    return body.decode().splitlines()


@contextmanager
def served(line: str, folder: Path) -> Iterator[str]:
    """Start the server of *line* on a free port and yield its address; it has ended by itself afterwards."""
    program = line.removesuffix(" &").replace("hicache serve", "exec hicache serve --port 0")
    with awaited(
        subprocess.Popen(["bash", "-c", program], cwd=folder, env=in_shell(folder), stdout=subprocess.PIPE, text=True)
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
            assert server.wait(PATIENCE_S) == 1
        finally:
            server.send_signal(signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["polls-alone", "skips", "other-ids"])
def test_a_planted_fault_is_told_as_the_page_shows_it(fault: str, tmp_path: Path) -> None:
    for block in blocks("bash"):
        if not block.startswith("hicache serve"):
            subprocess.run(
                ["bash", "-euc", block], cwd=tmp_path, env=in_shell(tmp_path), check=True, timeout=PATIENCE_S
            )
    (server, _), (curl, reply), *rest = sessions()[fault]

    with served(server, tmp_path) as url:
        assert shows(reply, answer(curl, url))

    for line, expected in rest:
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=in_shell(tmp_path), capture_output=True, text=True, check=False
        )
        assert shows(expected, done.stdout.splitlines()), f"{line}\n{done.stdout}\n{done.stderr}"


def test_every_session_of_the_page_is_run() -> None:
    assert list(sessions()) == ["polls-alone", "skips", "other-ids"]


@pytest.mark.parametrize(
    ("expected", "lines", "is_shown"),
    [
        (["entry 3: call order", "a  b"], ["entry 41: call order", "a b"], True),
        (["entry 3: call order"], ["entry 41: results"], False),
        (["written 0123456789abcdef+1 1"], ["written ffffffffffffffff+1 1"], True),
        (["written 0123456789abcdef+1 1"], ["written ffffffffffffffff+1 2"], False),
        (["a", "...", "z"], ["a", "b", "c", "z"], True),
        (["a", "..."], ["a"], True),
        (["a", "b"], ["a"], False),
        (["a b ..."], ["a b c"], True),
        (["a b ..."], ["a c"], False),
    ],
)
def test_only_what_differs_from_run_to_run_may_differ(expected: list[str], lines: list[str], is_shown: bool) -> None:
    assert shows(expected, lines) is is_shown
