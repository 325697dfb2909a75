"""The demo on every backend: with no address it starts the real server and stops it, with one it uses that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from hicache_storage.testing.services.mooncake import MooncakeService
from hicache_storage.testing.services.redis_server import RedisServer, redis_program
from hicache_storage.testing.services.seaweedfs import seaweedfs_program
from tests.cli.running import HICACHE, environment
from tests.services import require

QUICK = ("--readers", "tp1pp1", "--max-new-tokens", "4", "--json")
SERVERS = {"redis": "redis-server", "s3": "weed", "mooncake": "mooncake_master"}


def require_server(backend: str) -> None:
    available = {
        "redis": redis_program() is not None,
        "s3": seaweedfs_program() is not None,
        "mooncake": MooncakeService.available(),
    }
    require(backend, available[backend], "make install")


def servers_running(program: str) -> set[int]:
    """Return the processes of this program that are no zombies."""
    found = set()
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if folder.name.isdecimal() and Path(os.fsdecode(words[0])).name == program:
            found.add(int(folder.name))
    return found


def demo(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HICACHE, "demo", *QUICK, *flags], env=environment(), capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize("backend", SERVERS)
def test_without_an_address_a_server_is_started_and_stopped(backend: str) -> None:
    require_server(backend)
    before = servers_running(SERVERS[backend])

    ended = demo("--hicache-storage-backend", backend)

    assert ended.returncode == 0, ended.stderr
    (reader,) = json.loads(ended.stdout)["readers"]
    assert reader["same_text"]
    assert reader["pages_hit"] > 40
    assert f"{backend}: no address given, started a server of its own" in ended.stderr
    assert servers_running(SERVERS[backend]) <= before


def test_given_address_is_used() -> None:
    require_server("redis")
    with RedisServer() as server:
        before = servers_running("redis-server")

        ended = demo("--store", server.url)

        assert ended.returncode == 0, ended.stderr
        assert "started a server" not in ended.stderr
        assert int(server.ask("DBSIZE").lstrip(b":")) > 200
        assert servers_running("redis-server") <= before


def test_server_does_not_outlive_a_terminated_demo() -> None:
    require_server("redis")
    before = servers_running("redis-server")
    process = subprocess.Popen(
        [HICACHE, "demo", "--hicache-storage-backend", "redis"], env=environment(), stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stderr is not None
        while "prefill: model loaded" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    assert process.returncode == 130
    assert servers_running("redis-server") <= before
