"""Temporary files of writers that are gone are removed when a store is opened; those of live ones never."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hicache_storage.backends.file import FileStore
from hicache_storage.backends.file.temps import Temp, TempNames, host_id
from hicache_storage.types import ReadableBuffer
from tests.processes import awaited

HOUR_S = 3600


@pytest.fixture
def tmp(root: Path) -> Path:
    (root / "tmp").mkdir(parents=True)
    return root / "tmp"


def plant(tmp: Path, name: str, *, age_s: float = 0) -> Path:
    path = tmp / name
    path.write_bytes(b"half")
    then_s = path.stat().st_mtime - age_s
    os.utime(path, (then_s, then_s))
    return path


def start_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def test_a_name_says_who_writes_and_how_much_is_reserved() -> None:
    name = TempNames().new(8192)

    assert Temp.parse(name) == Temp(host_id(), os.getpid(), start_of(os.getpid()), 8192)


def test_no_two_calls_share_a_name() -> None:
    two = [TempNames(), TempNames()]

    assert len({names.new(0) for names in two for _ in range(1000)}) == 2000


def test_a_forked_child_has_names_of_its_own() -> None:
    code = (
        "import os\n"
        "from hicache_storage.backends.file.temps import Temp, TempNames\n"
        "names = TempNames(); names.new(0)\n"
        "child = os.fork()\n"
        "mine = Temp.parse(names.new(0)).pid == os.getpid()\n"
        "os._exit(not mine) if child == 0 else None\n"
        "assert mine and os.waitpid(child, 0)[1] == 0\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("text", ["", "x", "a.b.c.d.e.f", "a.1.2.3.x.4", "README.md", "a.1.2.3.4", "a.1.2.3.4.5.6"])
def test_a_foreign_name_is_not_ours(text: str) -> None:
    assert Temp.parse(text) is None


def test_a_dead_writers_temp_is_reclaimed(tmp: Path, open_store: Callable[..., FileStore]) -> None:
    with awaited(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)) as process:
        name = f"{host_id()}.{process.pid}.{start_of(process.pid)}.token.0.0"
        path = plant(tmp, name, age_s=10 * HOUR_S)
        open_store()
        assert path.exists()
    assert process.returncode is not None

    open_store()

    assert not path.exists()


def test_a_killed_writer_that_nobody_waited_for_is_dead(tmp: Path, open_store: Callable[..., FileStore]) -> None:
    with awaited(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)) as process:
        path = plant(tmp, f"{host_id()}.{process.pid}.{start_of(process.pid)}.token.0.0")
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

        open_store()

        assert not path.exists()


def test_a_reused_pid_is_not_taken_for_the_writer(tmp: Path, open_store: Callable[..., FileStore]) -> None:
    path = plant(tmp, f"{host_id()}.{os.getpid()}.{int(start_of(os.getpid())) - 1}.token.0.0")

    open_store()

    assert not path.exists()


@pytest.mark.parametrize("name", ["0123456789abcdef.1.1.token.0.0", "left by somebody else"])
def test_a_temp_of_another_host_is_reclaimed_by_age(tmp: Path, open_store: Callable[..., FileStore], name: str) -> None:
    young, old = plant(tmp, name, age_s=HOUR_S / 2), plant(tmp, f"1{name}", age_s=HOUR_S + 60)

    open_store(orphan_age_s=HOUR_S)

    assert young.exists()
    assert not old.exists()


def test_a_temp_that_cannot_be_removed_does_not_keep_a_store_shut(
    tmp: Path, open_store: Callable[..., FileStore]
) -> None:
    stuck = tmp / "folder of somebody"
    stuck.mkdir()
    os.utime(stuck, (0, 0))

    assert open_store().stat("key") is None


def test_temp_names_do_not_grow_with_the_key(
    named_drafts: None, store: FileStore, temps: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    pwritev = os.pwritev

    def measure(fd: int, buffers: Sequence[ReadableBuffer], offset: int) -> int:
        lengths.extend(map(len, temps()))
        return pwritev(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", measure)
    for key in ("k", "k" * 253, "/" * 300, "\u00e9 :" * 10_000):
        store.write(key, [b"x"])

    assert len(lengths) == 4
    assert max(lengths) < 64
