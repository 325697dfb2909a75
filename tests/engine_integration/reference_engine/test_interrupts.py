"""An engine is never left behind, whenever its parent is interrupted or fails, or its launcher dies."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

import pytest

from hicache_storage.engine_integration.reference_engine import client, model_folder
from hicache_storage.engine_integration.reference_engine.client import EngineClient
from hicache_storage.errors import RankFailure
from tests.engine_integration.reference_engine.asking import config
from tests.interrupting import interrupting

IDLE = "import threading; threading.Event().wait()"
LATE_RANK = """
import os
from hicache_storage.engine_integration.reference_engine.rank import die_with_parent
is_over, end_of_it = os.pipe()
launcher = os.fork()
if launcher == 0:
    launcher = os.getpid()
    os.close(end_of_it)
    if os.fork() == 0:
        os.read(is_over, 1)
        die_with_parent(launcher)
        print("lives on")
    os._exit(0)
os.waitpid(launcher, 0)
os.close(end_of_it)
"""
"""A launcher is killed before the rank that it has forked could ask the kernel to be killed with it."""


@pytest.fixture(autouse=True)
def _scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_rank_whose_launcher_is_gone_already_ends() -> None:
    rank = [sys.executable, "-u", "-c", LATE_RANK]

    done = subprocess.run(rank, stdout=subprocess.PIPE, text=True, timeout=60, check=True)

    assert done.stdout == ""


def test_an_engine_whose_launcher_starts_as_the_interrupt_comes_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(client, "_launch", interrupting(client._launch, launched))

    try:
        with pytest.raises(KeyboardInterrupt):
            EngineClient(config(topology="tp1pp1"))

        assert [process.poll() is not None for process in launched] == [True]
        assert list(tmp_path.iterdir()) == []
    finally:
        for process in launched:
            process.kill()
            process.wait()


def test_an_engine_that_nobody_can_listen_to_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[subprocess.Popen[bytes]] = []
    launch, start = client._launch, threading.Thread.start

    def launching(
        verdict: int, log_folder: Path, log: IO[bytes], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        launched.append(launch(verdict, log_folder, log, environment))
        return launched[-1]

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "hicache-events":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(client, "_launch", launching)
    monkeypatch.setattr(threading.Thread, "start", refuse)

    try:
        with pytest.raises(RuntimeError, match="new thread"):
            EngineClient(config(topology="tp1pp1"), log_folder=tmp_path)

        assert [process.poll() is not None for process in launched] == [True]
    finally:
        for process in launched:
            process.kill()
            process.wait()


def test_an_engine_whose_logs_are_gone_says_how_it_ended_all_the_same(tmp_path: Path) -> None:
    with EngineClient(config(topology="tp1pp1"), log_folder=tmp_path / "logs") as engine:
        (tmp_path / "logs" / "launcher.log").unlink()

        engine.kill()

        with pytest.raises(RankFailure, match="launcher: ended with status -9"):
            engine.receive()


def test_a_converter_that_starts_as_the_interrupt_comes_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def idle(_command: list[str], *, stdin: int, stdout: int, stderr: int, text: bool) -> subprocess.Popen[str]:
        return start([sys.executable, "-c", IDLE], stdin=stdin, stdout=stdout, stderr=stderr, text=text)

    monkeypatch.setattr(subprocess, "Popen", interrupting(idle, started))

    try:
        with pytest.raises(KeyboardInterrupt):
            model_folder._convert(tmp_path / "model.gguf", tmp_path, 60)

        assert {process.poll() is not None for process in started} == {True}
    finally:
        for process in started:
            process.kill()
            process.wait()
