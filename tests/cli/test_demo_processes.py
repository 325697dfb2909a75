"""The demo's processes end together, and the reason that is shown is the cause."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hicache_storage.cli.demo.job import CacheSpec, ReadJob, ReadResult, StoreSpec
from hicache_storage.cli.demo.processes import Launch, run_children
from hicache_storage.engine_integration.reference_engine.random_model import RandomShape, write_random_model
from hicache_storage.errors import ConfigError, RankFailure

READER = "hicache_storage.cli.demo.reader"
DEADLINE_S = 120.0
CACHE = CacheSpec(
    model_id="tiny",
    weights_revision="1",
    dtype="float32",
    num_layers=4,
    num_kv_heads=4,
    head_dim=16,
    page_tokens=4,
    layer_partition=2,
    head_partition=4,
)


@pytest.fixture
def rendezvous() -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        yield file.fileno()


@pytest.fixture
def job(tmp_path: Path, rendezvous: int) -> ReadJob:
    """The first of two pipeline stages; alone it waits for the second."""
    write_random_model(tmp_path, RandomShape(), seed=1)
    return ReadJob(
        store=StoreSpec("file", {"path": str(tmp_path / "kv")}),
        cache=CACHE,
        folder=str(tmp_path),
        reader="tp1pp2",
        tp_rank=0,
        pp_rank=0,
        tokens=list(range(10)),
        num_pages=2,
        page_hashes=["0" * 64, "1" * 64],
        max_new_tokens=2,
        rendezvous=rendezvous,
        timeout_s=DEADLINE_S,
    )


def of_reader(job: ReadJob, label: str) -> Launch:
    return Launch(READER, job, label, job.rendezvous)


def run(*launches: Launch, timeout_s: float = DEADLINE_S) -> list[ReadResult]:
    return run_children(launches, ReadResult, step="read", timeout_s=timeout_s, on_progress=lambda _: None)


def test_a_failing_rank_ends_the_step_with_its_own_error(job: ReadJob, tmp_path: Path) -> None:
    broken = msgspec.structs.replace(job, pp_rank=1, folder=str(tmp_path / "missing"))

    with pytest.raises(ConfigError, match=r"stage 1: .*missing"):
        run(of_reader(job, "stage 0"), of_reader(broken, "stage 1"))


def test_a_rank_that_dies_without_a_word_ends_the_step(job: ReadJob) -> None:
    with pytest.raises(RankFailure, match=r"stage 1: ended with status 1: .*no_such_module"):
        run(of_reader(job, "stage 0"), Launch("hicache_storage.no_such_module", job, "stage 1"))


def test_a_rank_that_never_answers_ends_the_step(job: ReadJob) -> None:
    with pytest.raises(RankFailure, match="stage 0: no answer within 1 s"):
        run(of_reader(job, "stage 0"), timeout_s=1.0)


def test_a_rank_does_not_outlive_its_parent(job: ReadJob) -> None:
    command = [sys.executable, "-m", READER]
    with subprocess.Popen(command, pass_fds=[job.rendezvous], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        process.stdin.close()

        assert process.wait(timeout=DEADLINE_S / 2) == 1
