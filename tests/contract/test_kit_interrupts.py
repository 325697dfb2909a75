"""A server of the kit is never left behind, whenever an interrupt comes and whoever forgets it."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from hicache_storage.testing.services.process import ServiceProcess
from tests.interrupting import interrupting

IDLE = "import threading; threading.Event().wait()"
BEGIN = f"""
import os, sys
from hicache_storage.testing.services.process import ServiceProcess
server = ServiceProcess("idle", lambda _: [sys.executable, "-c", {IDLE!r}], ready=lambda: True).start()
"""
FORGET = "print(server._process.pid, server.folder)"
FORK = """
if os.fork() == 0:
    sys.exit()
os.wait()
print(server.running, server.folder.exists())
server.stop()
"""


def idle() -> ServiceProcess:
    return ServiceProcess("idle", lambda _: [sys.executable, "-c", IDLE], ready=lambda: True)


def test_a_server_whose_program_starts_as_the_interrupt_comes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    server = idle()
    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(subprocess, "Popen", interrupting(subprocess.Popen, started))

    try:
        with pytest.raises(KeyboardInterrupt):
            server.start()

        assert [process.poll() is not None for process in started] == [True]
        assert not server.folder.exists()
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_folder_that_is_made_as_the_interrupt_comes_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "mkdtemp", interrupting(tempfile.mkdtemp, made))

    with suppress(KeyboardInterrupt):
        idle()
    gc.collect()

    assert [Path(folder).exists() for folder in made] == [False]


def test_a_server_that_nobody_stops_ends_with_the_process() -> None:
    ended = run(BEGIN + FORGET)

    pid, folder = ended.split()
    assert not Path(f"/proc/{pid}").exists()
    assert not Path(folder).exists()


def test_a_server_does_not_end_with_a_fork_of_the_process() -> None:
    assert run(BEGIN + FORK) == "True True\n"


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return done.stdout
