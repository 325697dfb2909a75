"""Ctrl-C and a termination, whenever they come: told in a line, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache_storage.cli import doctor
from tests.cli.running import Hicache, environment
from tests.interrupting import handled_by

_AT_EXIT = """
import atexit, os, signal, sys
from hicache_storage.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.argv = ["hicache", "plan", "--layers", "2", "--kv-heads", "2", "--fleet", "tp1", "--json"]
sys.exit(main())
"""


@pytest.fixture(autouse=True)
def _a_termination_is_survived() -> Iterator[None]:
    """A command that does not heed it fails its test, and not pytest."""
    with handled_by(lambda *_: None, [signal.SIGTERM]):
        yield


def test_a_second_ctrl_c_while_the_first_is_told_of_ends_in_the_same_way(
    hicache: Hicache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("hicache_storage.cli.program._run", interrupted)
    monkeypatch.setattr("hicache_storage.cli.program.say", interrupted)

    assert hicache("ls").status == 130


def test_ctrl_c_while_the_interpreter_ends_is_not_shown() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _AT_EXIT], capture_output=True, text=True, env=environment(), timeout=60, check=False
    )

    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_a_program_that_calls_a_command_goes_on_heeding_ctrl_c(hicache: Hicache) -> None:
    hicache("plan", "--layers", "2", "--kv-heads", "2", "--fleet", "tp1")

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_doctor_that_is_told_to_end_leaves_no_probe(
    hicache: Hicache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    written: list[Path] = []

    def interrupted(_probe: doctor.Probe) -> doctor.Check:
        written.extend(path for path in tmp_path.rglob("doctor_*") if path.is_file())
        os.kill(os.getpid(), number)
        return doctor.Check("exists", passed=True, detail="")

    monkeypatch.setattr(doctor.Probe, "exists", interrupted)

    ended = hicache("doctor", "--store", f"file://{tmp_path}")

    assert (ended.status, ended.out, ended.err) == (130, "", "hicache: interrupted\n")
    assert [path.exists() for path in written] == [False]
