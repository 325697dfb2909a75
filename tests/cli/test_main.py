"""What every command has in common: help, exit status, streams, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from hicache_storage.cli import exit_codes
from hicache_storage.cli.program import build_parser
from hicache_storage.errors import (
    AccessDenied,
    ConfigError,
    CorruptObject,
    HiCacheError,
    LayoutError,
    RangeError,
    StoreFull,
    StoreUnavailable,
    Unsupported,
)
from hicache_storage.registry import open_store
from tests.cli.deployment import Deployment, deploy, flip_bit
from tests.cli.running import HICACHE, Hicache, environment, run_process
from tests.processes import awaited

STORE_OPTIONS = {"--hicache-storage-backend", "--store", "--hicache-storage-backend-extra-config"}
COMMANDS = {
    "plan": {
        "--layers",
        "--kv-heads",
        "--mla",
        "--head-dim",
        "--kv-cache-dtype",
        "--page-size",
        "--fleet",
        "--readers",
        "--hicache-storage-layer-partition",
        "--hicache-storage-head-partition",
    },
    "ls": {"PREFIX", "--objects", "--namespace", "--limit"} | STORE_OPTIONS,
    "stat": {"KEY"} | STORE_OPTIONS,
    "explain": {"KEY", "--offline"} | STORE_OPTIONS,
    "verify": {"KEY", "--prefix", "--quarantine"} | STORE_OPTIONS,
    "doctor": STORE_OPTIONS,
    "demo": STORE_OPTIONS,
}
EXIT_CODES = "exit status: 0 done, 1 missing, 2 usage or configuration, 3 store unreachable, 4 corrupt data"


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


# -- help --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_option_and_every_exit_status(hicache: Hicache, command: str) -> None:
    ended = hicache(command, "--help")

    assert ended.status == 0
    assert ended.err == ""
    assert EXIT_CODES in words(ended.out)
    missing = [name for name in COMMANDS[command] | {"--json", "--help"} if name not in ended.out]
    assert missing == []


def test_help_lists_every_command(hicache: Hicache) -> None:
    ended = hicache("--help")

    assert ended.status == 0
    assert EXIT_CODES in words(ended.out)
    assert [command for command in COMMANDS if f"\n    {command} " not in ended.out] == []


def test_the_version_is_the_packages(hicache: Hicache) -> None:
    ended = hicache("--version")

    assert (ended.status, ended.out) == (0, f"hicache {version('hicache-storage')}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_ends_with_examples_that_the_command_line_takes(hicache: Hicache, command: str) -> None:
    lines = hicache(command, "--help").out.splitlines()

    examples = [line.split() for line in lines if line.startswith("  hicache ")]
    assert examples
    for name, *arguments in examples:
        assert (name, arguments[0]) == ("hicache", command)
        build_parser().parse_args(arguments)


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hicache_storage.cli", "--version"], capture_output=True, text=True, check=True
    )

    assert done.stdout == f"hicache {version('hicache-storage')}\n"


# -- exit status -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [(), ("no-such-command",), ("ls", "--no-such-flag"), ("stat",), ("--json",), ("explain",)]
)
def test_what_is_no_command_is_status_two_with_usage_on_stderr(hicache: Hicache, arguments: tuple[str, ...]) -> None:
    ended = hicache(*arguments)

    assert ended.status == 2
    assert ended.out == ""
    assert ended.err.startswith("usage: hicache")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("x"), 2),
        (LayoutError("x"), 2),
        (Unsupported("x"), 2),
        (StoreUnavailable("x"), 3),
        (AccessDenied("x"), 3),
        (StoreFull("x"), 3),
        (CorruptObject("x"), 4),
        (RangeError("x"), 4),
    ],
)
def test_every_error_has_its_exit_status(error: HiCacheError, status: int) -> None:
    assert exit_codes.of_error(error) == status


def test_a_process_ends_with_each_exit_status(deployment: Deployment) -> None:
    corrupt, lost, good = deployment.keys[0], deployment.keys[6], deployment.keys[11]
    flip_bit(deployment.file_of(corrupt), 0)
    folder = deployment.file_of(lost).parent
    for neighbour in folder.iterdir():
        neighbour.unlink()
    folder.rmdir()
    folder.write_text("no folder any more")
    store = ("--store", deployment.url)

    ended = [
        run_process("stat", good, *store),
        run_process("stat", "nowhere", *store),
        run_process("stat", good, "--store", "no-such-backend"),
        run_process("stat", lost, *store),
        run_process("verify", corrupt, *store),
    ]

    assert [end.status for end in ended] == [0, 1, 2, 3, 4]
    assert not any("Traceback" in end.err for end in ended)


def test_the_seed_example_runs_as_a_process() -> None:
    ended = run_process("plan", "--layers", "60", "--kv-heads", "8", "--fleet", "tp4pp2,tp2pp1", "--json")

    assert (ended.status, ended.err) == (0, "")
    assert ended.json()["objects_per_page"] == 8


# -- the store's flags -------------------------------------------------------------------------


def test_flags_go_before_the_environment(
    hicache: Hicache, tmp_path: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("HICACHE_STORAGE_BACKEND", f"file://{tmp_path}/empty")

    assert hicache("ls").status == 1
    assert hicache("ls", "--store", deployment.url).status == 0
    assert hicache("ls", "--hicache-storage-backend", deployment.url).status == 0


@pytest.mark.parametrize("config", ["{", "[]", "@/no/such/file.json", '{"path": 1}', '{"paht": "/x"}', "\udcff"])
@pytest.mark.parametrize("command", ["ls", "stat", "explain", "verify", "doctor"])
def test_a_wrong_configuration_is_status_two_on_every_command(hicache: Hicache, command: str, config: str) -> None:
    key = {"stat": ["k"], "explain": [f"{'ab' * 32}_ukv1-0123456789abcdef_L0-1"]}.get(command, [])

    ended = hicache(command, *key, "--store", "file", "--hicache-storage-backend-extra-config", config, "--json")

    assert ended.status == 2
    assert ended.out == ""
    assert ended.err.startswith("hicache: ConfigError: ")


@pytest.mark.parametrize("target", ["{folder}", "./kv", "file:{folder}"])
def test_a_folder_that_is_no_url_is_shown_as_one(
    hicache: Hicache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)

    ended = hicache("ls", "--store", target.format(folder=tmp_path / "kv"))

    assert ended.status == 2
    assert f"file://{tmp_path}/kv" in ended.err


# -- streams -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [("ls", "--objects"), ("verify", "--json"), ("ls", "--help")],
)
def test_a_reader_that_has_gone_is_no_error(deployment: Deployment, arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    store = [] if "--help" in arguments else ["--store", deployment.url]
    try:
        done = subprocess.run(
            [HICACHE, *arguments, *store],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)

    assert (done.returncode, done.stderr) == (0, b"")


def test_head_takes_one_line_and_nothing_complains(deployment: Deployment) -> None:
    with open_store(deployment.url) as store:
        for number in range(1500):
            store.write(f"{number:0200d}", [b"x"])

    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; '{HICACHE}' ls --objects --store '{deployment.url}' | head -1"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["key", "bytes", "modified"]


@pytest.mark.parametrize(("encoding", "as_json"), [("ascii", ()), ("latin-1", ("--json",))])
def test_any_locale_can_show_any_name(tmp_path: Path, encoding: str, as_json: tuple[str, ...]) -> None:
    name = "模型-ü-😀"
    store = deploy(tmp_path / "kv", model_id=name)

    ended = subprocess.run(
        [HICACHE, "ls", "--store", store.url, *as_json],
        capture_output=True,
        env=environment({"PYTHONIOENCODING": encoding}),
        timeout=60,
        check=True,
    )

    if as_json:
        assert json.loads(ended.stdout)["namespaces"][0]["fields"]["model_id"] == name
    else:
        assert name.encode(encoding, "backslashreplace") in ended.stdout


def test_a_path_that_is_no_text_can_be_shown(hicache: Hicache, tmp_path: Path) -> None:
    ended = hicache("doctor", "--store", f"file://{tmp_path}/ends%ff")

    assert (ended.status, ended.err) == (0, "")
    assert r"ends\udcff" in ended.out


def test_logs_go_to_stderr_and_data_to_stdout(deployment: Deployment) -> None:
    config = json.dumps({"path": str(deployment.root)})
    flags = ("--store", "tests.cli.stores:LoggingStore", "--hicache-storage-backend-extra-config", config)

    ended = run_process("-vv", "verify", "--json", *flags)

    assert ended.json()["corrupt"] == 0
    assert ended.err == "DEBUG tests.cli.stores store.list\n"


# -- signals -----------------------------------------------------------------------------------


def test_ctrl_c_is_status_130_without_a_traceback(deployment: Deployment) -> None:
    config = json.dumps({"path": str(deployment.root)})
    flags = ["--store", "tests.cli.stores:WaitingStore", "--hicache-storage-backend-extra-config", config]
    # A shell's background jobs ignore Ctrl-C and pass that on; the command must start as from a terminal.
    heeding = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", heeding, HICACHE, "ls", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with awaited(process):
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (130, "", "hicache: interrupted\n")


def test_ctrl_c_before_anything_has_begun_ends_without_a_word() -> None:
    """The signal arrives while the command line's own modules are loaded."""
    program = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "hicache_storage.cli.plan":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
from hicache_storage.cli.main import main
sys.exit(main(["plan", "--help"]))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_a_command_that_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    """As below nohup."""
    program = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from hicache_storage.cli.main import main
main(["plan", "--layers", "2", "--kv-heads", "2", "--fleet", "tp1"])
sys.exit(0 if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else 1)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_command_line_starts_before_it_loads_anything() -> None:
    program = (
        "import sys; import hicache_storage.cli.main; print(*sorted(n for n in sys.modules if n.startswith('hicache')))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    light = {"hicache_storage", "hicache_storage.errors", "hicache_storage.store", "hicache_storage.types"}
    assert set(ended.stdout.split()) == light | {"hicache_storage.cli", "hicache_storage.cli.main"}


def test_a_bug_is_not_dressed_up(
    hicache: Hicache, scripted: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tests.cli.stores.ScriptedStore.list_keys", broken)

    with pytest.raises(ZeroDivisionError):
        hicache("ls", *scripted(""))
