"""Streams that are closed, full or a terminal: no command ends in a traceback, and its status stays its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from hicache_storage.cli.output import progress
from tests.cli.deployment import Deployment
from tests.cli.running import HICACHE, Hicache, environment


def in_shell(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``hicache ARGUMENTS`` in a shell that redirects its streams."""
    script = f'"$0" "$@" {redirection}'
    return subprocess.run(
        ["bash", "-c", script, HICACHE, *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )


COMMANDS = [("ls",), ("ls", "--objects", "--json"), ("verify",), ("stat", "no such key"), ("doctor", "--json")]


@pytest.mark.parametrize("arguments", COMMANDS)
@pytest.mark.parametrize("stream", ["1>&-", "2>&-", "1>&- 2>&-"])
def test_a_closed_stream_changes_no_status(
    hicache: Hicache, deployment: Deployment, arguments: tuple[str, ...], stream: str
) -> None:
    status = hicache(*arguments, "--store", deployment.url).status

    done = in_shell(stream, *arguments, "--store", deployment.url)

    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_output_on_a_full_disk_is_said_and_is_no_success(deployment: Deployment) -> None:
    done = in_shell("> /dev/full", "ls", "--objects", "--store", deployment.url)

    assert done.returncode == 2
    assert done.stderr == "hicache: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("stream", ["2> /dev/full", "2> >(true)"])
def test_words_that_nobody_can_hear_change_no_status(deployment: Deployment, stream: str) -> None:
    done = in_shell(stream, "stat", "no such key", "--store", deployment.url)

    assert done.returncode == 1


@pytest.mark.parametrize("arguments", [("-vv", "ls"), ("ls", "-vv"), ("-v", "ls", "-vv")])
def test_verbosity_goes_before_or_behind_the_command(deployment: Deployment, arguments: tuple[str, ...]) -> None:
    config = f'{{"path": "{deployment.root}"}}'
    flags = ("--store", "tests.cli.stores:LoggingStore", "--hicache-storage-backend-extra-config", config)

    done = in_shell("", *arguments, *flags)

    assert done.stderr == "DEBUG tests.cli.stores store.list\n"


def test_a_failure_leaves_the_progress_on_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)

    def items() -> Iterator[int]:
        yield 1
        raise OSError

    with pytest.raises(OSError):
        list(progress(items(), total=2, label="verified"))

    assert capsys.readouterr().err.endswith("verified [############............] 1/2\n")


def test_a_bar_is_drawn_on_a_terminal_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress([1, 2], total=2, label="verified")) == [1, 2]

    assert capsys.readouterr().err == ""
