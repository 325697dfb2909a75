"""Test files that run inside the environment of an engine: here each is one test, there they are ordinary tests.

A file of such a folder imports the engine, which this project's own environment does not have. A folder's conftest
hands its files to `InsideFile`; the test that stands for a file starts pytest on it in the engine's environment, and
fails where that fails, collects nothing or skips anything.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from xml.etree import ElementTree as ET

import pytest

from benchmarks.peers.project import ROOT, offer_project

_ENGINE = "HICACHE_TEST_ENGINE"
_DEADLINE_S = 600


class Environment(Protocol):
    """Where an engine is installed."""

    @property
    def name(self) -> str: ...

    @property
    def python(self) -> Path: ...

    def environ(self) -> dict[str, str]:
        """Return the whole environment of a process in it, with the engine on PYTHONPATH where it needs that."""
        ...


def is_inside(engine: str) -> bool:
    """Return whether this process runs in the environment of *engine*."""
    return os.environ.get(_ENGINE) == engine


@dataclass(frozen=True, slots=True)
class Inner:
    """How pytest in the engine's environment ended."""

    returncode: int
    passed: int
    output: str
    complaint: str


class NotPassed(Exception):
    """A file did not pass inside; the text is the complaint and all that pytest printed."""


class InsideFile(pytest.File):
    """Holds the one test that stands for a file of tests.

    Attributes:
        environment: where the file runs.
        ready: makes the environment if it is not there; several processes may ask at once.
        plugins: modules that pytest loads there, beside the conftests.
    """

    environment: Environment
    ready: Callable[[], None]
    plugins: tuple[str, ...]

    def collect(self) -> Iterator[pytest.Item]:
        yield InsideItem.from_parent(self, name="passes_inside")


class InsideItem(pytest.Item):
    """Passes if pytest passes on the file in the engine's environment."""

    def setup(self) -> None:
        # A session that installs an engine takes longer than any test may.
        faulthandler.cancel_dump_traceback_later()
        self._file().ready()

    def runtest(self) -> None:
        file = self._file()
        inner = run_inside(file.environment, [str(file.path)], file.plugins)
        self.add_report_section("call", f"inside {file.environment.name}", inner.output)
        if inner.complaint:
            raise NotPassed(f"{inner.complaint}\n{inner.output}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str:  # type: ignore[override] # a text will do
        if isinstance(excinfo.value, NotPassed | RuntimeError):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name

    def _file(self) -> InsideFile:
        assert isinstance(self.parent, InsideFile)
        return self.parent


def run_inside(environment: Environment, arguments: Sequence[str], plugins: Sequence[str] = ()) -> Inner:
    """Run pytest with *arguments* in *environment* and say how it ended."""
    with tempfile.TemporaryDirectory(prefix="hicache-inside-") as folder:
        report = Path(folder) / "report.xml"
        command, environ = inside_command(environment, Path(folder), arguments, plugins)
        command += ["--junitxml", str(report)]
        log = Path(folder) / "output.txt"
        with log.open("wb") as output:
            try:
                returncode = subprocess.run(
                    command, cwd=folder, env=environ, check=False, stdout=output, stderr=output, timeout=_DEADLINE_S
                ).returncode
            except subprocess.TimeoutExpired:
                returncode = -1
        return _judge(returncode, log.read_text(errors="replace"), report)


def inside_command(
    environment: Environment, tree: Path, arguments: Sequence[str], plugins: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a pytest that runs in *environment*.

    Args:
        tree: an empty folder to start it in, which takes links to this project.
    """
    offer_project(tree)
    environ = environment.environ() | {_ENGINE: environment.name, "OMP_NUM_THREADS": "1"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(tree), environ.get("PYTHONPATH"))))
    ini = Path(__file__).with_name("inside.ini")
    options = [option for plugin in plugins for option in ("-p", plugin)]
    command = [str(environment.python), "-m", "pytest", "-c", str(ini), "--rootdir", str(ROOT)]
    return [*command, "-p", "no:cacheprovider", *options, *arguments], environ


def _judge(returncode: int, output: str, report: Path) -> Inner:
    """Return the outcome; anything but a pass of everything is a complaint."""
    if not report.is_file():
        return Inner(returncode, 0, output, f"pytest ended with {returncode} and no report")
    suite = ET.parse(report).getroot().find("testsuite")
    assert suite is not None
    total, bad = int(suite.attrib["tests"]), int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    skipped = int(suite.attrib["skipped"])
    complaints = [
        f"pytest ended with {returncode}" if returncode else "",
        f"{bad} of {total} tests failed" if bad else "",
        f"{skipped} of {total} tests were skipped" if skipped else "",
        "no test was collected" if not total else "",
    ]
    return Inner(returncode, total - bad - skipped, output, ", ".join(filter(None, complaints)))


def say(config: pytest.Config, text: str) -> None:
    """Show *text* to who waits for the tests, whatever is captured."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        print(text, file=sys.stderr, flush=True)
        return
    with capture.global_and_fixture_disabled():
        print(text, file=sys.stderr, flush=True)
