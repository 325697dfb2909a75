"""Real processes, a rank each: they start, talk, fail and end as the parent is told."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from hicache_storage.engine_integration.reference_engine.client import EngineClient
from hicache_storage.engine_integration.reference_engine.engine_config import StoreTarget
from hicache_storage.engine_integration.reference_engine.messages import Attach, Detach, Flush, Generate
from hicache_storage.errors import ConfigError, HiCacheError, LayoutError, RankFailure
from tests.engine_integration.reference_engine.asking import MLA, answered, ask, config, counters, prompt
from tests.processes import awaited

ORPHAN = """
import sys, time
from tests.engine_integration.reference_engine.asking import config
from hicache_storage.engine_integration.reference_engine.client import EngineClient
engine = EngineClient(config(topology="tp2pp1"))
print(engine.pid, flush=True)
time.sleep(600)
"""
HASTY = """
from datetime import timedelta
from torch.distributed import distributed_c10d
from hicache_storage.backends.file import FileStore

class Store(FileStore):
    def close(self):
        super().close()
        for group in list(distributed_c10d._world.pg_map):
            distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
"""
"""A rank that has had this store waits no longer than a second for another one: a start on a busy machine takes longer."""


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_end(pid: int) -> None:
    """Return once the process, which need not be a child, has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([descriptor], [], [], 60)
        assert ready, f"process {pid} still runs"
    finally:
        os.close(descriptor)


def test_latent_attention_over_stages_and_ranks_each_with_a_log(tmp_path: Path) -> None:
    request = Generate("a", prompt(2), 6)
    settings = config(MLA, topology="tp2pp2", dtype="bfloat16")

    with EngineClient(settings, log_folder=tmp_path / "logs") as engine:
        twice = [ask(engine, request)["a"] for _ in range(2)]
        logs = [engine.log_of(rank) for rank in range(4)]

    assert twice[0].tokens == twice[1].tokens
    assert twice[1].cached == (28, 0, 0)
    assert [log.name for log in logs] == ["tp0pp0.log", "tp1pp0.log", "tp0pp1.log", "tp1pp1.log"]
    assert all("rank.ready" in log.read_text() and "rank.ended" in log.read_text() for log in logs)


def test_a_store_comes_and_goes_while_the_engine_runs(tmp_path: Path) -> None:
    attach = Attach(1, f"file://{tmp_path}")

    with EngineClient(config(topology="tp2pp1")) as engine:
        said = [
            answered(engine, attach).error,
            answered(engine, Attach(2, "file:///elsewhere")).error,
            answered(engine, Detach(3)).error,
            answered(engine, Attach(4, "nowhere")).error,
            answered(engine, attach).error,
        ]
        ask(engine, Generate("a", prompt(1), 2))
        assert answered(engine, Flush(5)).error is None
        held = counters(engine)

    assert (said[0], said[2], said[4]) == (None, None, None)
    assert "attached already" in str(said[1])
    assert "no storage backend 'nowhere'" in str(said[3])
    assert held["pages_written_back"] == 2 * 7
    assert (held["now.device_pages_held"], held["now.host_pages_held"], held["now.store_attached"]) == (0, 0, 1)


def test_a_wrong_store_is_told_once_and_as_what_it_is() -> None:
    with EngineClient(config(topology="tp2pp1")) as engine:
        answer = answered(engine, Attach(1, "file:///proc/nowhere"))

    assert answer.is_wrong_config
    assert str(answer.error).startswith("file option path = ")
    assert "rank" not in str(answer.error)


def test_what_keeps_a_rank_from_starting_is_told() -> None:
    settings = config(topology="tp2pp1", store=StoreTarget(backend="nowhere"))

    with pytest.raises(ConfigError, match="tp0pp0: ConfigError: no storage backend 'nowhere'"):
        EngineClient(settings)


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({"random": None, "model": "/nowhere"}, ConfigError, "/nowhere/config.json cannot be read"),
        ({"topology": "tp3pp1"}, LayoutError, "4 KV heads over 3"),
        ({"topology": "tp16pp1"}, ConfigError, "8 query heads over 16"),
        ({"topology": "tp1pp5"}, LayoutError, "5 stages"),
        ({"layer_partition": 5}, LayoutError, "layer_partition = 5"),
    ],
)
def test_what_is_wrong_with_a_config_is_told_before_anything_starts(
    changes: dict[str, object], kind: type[HiCacheError], reason: str
) -> None:
    with pytest.raises(kind, match=re.escape(reason)):
        EngineClient(config(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["file/logs", "file"])
def test_a_log_folder_that_cannot_be_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(ConfigError, match=rf"log folder {tmp_path / place} cannot be written"):
        EngineClient(config(), log_folder=tmp_path / place)


def test_a_gpu_that_is_not_there_is_missed_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    with pytest.raises(ConfigError, match="device = 'cuda' needs a GPU for each rank, 1 in all; torch sees 0"):
        EngineClient(config(device="cuda"))


def test_a_rank_that_dies_ends_the_engine_and_is_named() -> None:
    with EngineClient(config(topology="tp2pp2")) as engine:
        ask(engine, Generate("a", prompt(1), 2))
        ranks = children_of(engine.pid)

        os.kill(ranks[2], signal.SIGKILL)

        with pytest.raises(RankFailure, match=r"rank 2: tp0pp1: killed by SIGKILL"):
            engine.receive()
        for rank in ranks:
            wait_for_end(rank)


def test_a_rank_that_hangs_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hasty.py").write_text(HASTY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with EngineClient(config(topology="tp2pp1")) as engine:
        rank = children_of(engine.pid)[1]
        assert answered(engine, Attach(1, "hasty:Store", json.dumps({"path": str(tmp_path / "kv")}))).error is None

        def hang() -> None:
            # The second of patience begins here: on a busy machine it may be over before the signal is sent.
            answered(engine, Detach(2))
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGSTOP)
            engine.receive()

        with pytest.raises(RankFailure, match="rank 0: tp0pp0: RankFailure"):
            hang()


def test_an_engine_that_takes_no_command_is_closed_by_force_and_lets_the_sender_go() -> None:
    more_than_a_pipe_holds = [Generate(f"{number}", tuple(range(97)) * 50, 1) for number in range(20)]
    engine = EngineClient(config())
    (rank,) = children_of(engine.pid)
    os.kill(rank, signal.SIGSTOP)

    def send_all() -> None:
        for request in more_than_a_pipe_holds:
            engine.send(request)

    sender = threading.Thread(target=send_all, daemon=True)
    sender.start()

    engine.close(timeout_s=0.5)

    sender.join(60)
    assert not sender.is_alive()
    wait_for_end(rank)


def test_an_engine_whose_parent_is_killed_ends(tmp_path: Path) -> None:
    orphaning = subprocess.Popen(
        [sys.executable, "-c", ORPHAN],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"TMPDIR": str(tmp_path)},  # nobody is left to remove its logs
    )
    with awaited(orphaning) as parent:
        assert parent.stdout is not None
        launcher = int(parent.stdout.readline())
        ranks = children_of(launcher)
        parent.kill()

    assert len(ranks) == 2
    for pid in (*ranks, launcher):
        wait_for_end(pid)


def test_an_engine_without_its_launcher_ends() -> None:
    engine = EngineClient(config(topology="tp2pp1"))
    ranks = children_of(engine.pid)

    os.kill(engine.pid, signal.SIGKILL)

    with pytest.raises(RankFailure, match="launcher"):
        engine.receive()
    for pid in ranks:
        wait_for_end(pid)
    engine.close()
