"""A test that finds a process hanging fails, and goes on."""

from __future__ import annotations

import subprocess
import sys
from typing import IO

import pytest

from tests.processes import awaited

HANGING = "print('up', flush=True); import threading; threading.Event().wait()"


def hanging() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE, text=True)


def said_by(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def test_an_error_ends_a_process_that_hangs() -> None:
    process = hanging()

    with pytest.raises(ZeroDivisionError), awaited(process):
        raise ZeroDivisionError

    assert process.returncode < 0


def test_whoever_reads_from_a_process_that_hangs_reads_its_end() -> None:
    with awaited(hanging(), limit_s=0.5) as process:
        assert said_by(process).read() in ("up\n", "")

    assert process.returncode < 0


def test_a_process_that_hangs_behind_the_block_is_ended() -> None:
    with awaited(hanging(), limit_s=0.5) as process:
        assert said_by(process).readline() in ("up\n", "")  # On a busy machine the time may be over before.

    assert process.returncode < 0


def test_a_process_that_ends_by_itself_is_left_alone() -> None:
    with awaited(subprocess.Popen([sys.executable, "-c", ""])) as process:
        pass

    assert process.returncode == 0
