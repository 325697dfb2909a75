"""The rank consensus checker around real ranks: silent while they agree, and told by each where they part."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hicache_storage.cli.main import main
from hicache_storage.engine_integration.consensus.options import Mode
from hicache_storage.engine_integration.reference_engine.client import EngineClient
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig, StoreTarget
from hicache_storage.engine_integration.reference_engine.messages import Abort, Command, Flush, Generate
from hicache_storage.errors import ConfigError, RankFailure
from tests.engine_integration.reference_engine.asking import EAGER, GQA, answered, ask, config, hear, prompt, turns
from tests.engine_integration.reference_engine.planted import plant
from tests.engine_integration.reference_engine.test_processes import children_of
from tests.engine_integration.reference_engine.thread_ranks import ThreadEngine

SERIALS = [1, 2, 3, 4]
GUARDED = {
    "RadixTree": ["match", "match_and_split", "insert", "insert_host", "lock", "unlock", "split", "evict", "reset"],
    "Transfers": ["begin_backup", "begin_load", "begin_store", "complete", "abort"],
    "AckQueue": ["take", "wait"],
    "Controller": ["arrive", "ready", "admit", "allocate", "commit", "finish", "abort", "step", "settle", "flush"],
    "Scheduler": ["generate", "abort", "step", "_has_room", "_start", "_plan", "_preempt", "_apply"],
}
LIST_GUARDED = """
from hicache_storage.engine_integration.controller import Controller
from hicache_storage.engine_integration.radix import RadixTree
from hicache_storage.engine_integration.radix.transfers import Transfers
from hicache_storage.engine_integration.reference_engine.scheduler import Scheduler
from hicache_storage.engine_integration.store_tier.acks import AckQueue
for owner in (RadixTree, Transfers, AckQueue, Controller, Scheduler):
    print(*(f"{owner.__name__}.{name}" for name, value in vars(owner).items() if hasattr(value, "__wrapped__")))
"""


def compared(folder: Path, topology: str, mode: Mode, **changes: object) -> EngineConfig:
    """Return a small engine whose ranks are compared, with everything that it leaves in *folder*."""
    fields = {
        "topology": topology,
        "store": StoreTarget(backend="planted:FileStore", extra_config=json.dumps({"path": str(folder / "store")})),
        "layer_partition": 1,
        "head_partition": 1,
        "rank_consensus": mode,
        "rank_consensus_log_folder": str(folder / "entries"),
    }
    return config(GQA, folder=None, **(fields | changes))


def names_in(folder: Path) -> set[str]:
    """Return what was recorded, by name."""
    lines = [json.loads(line) for log in folder.glob("*.jsonl") for line in log.read_text().splitlines()]
    return {line["name"] for line in lines if line["line"] == "entry"}


def guarded(switch: str) -> set[str]:
    """Return the decorated functions of a process that is started with the checker on or off."""
    program = f"import os\nos.environ['SGLANG_ENABLE_RANK_CONSENSUS_CHECKER'] = '{switch}'\n{LIST_GUARDED}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.split())


def test_tree_queues_and_scheduler_are_guarded_while_it_is_on_and_their_plain_selves_while_it_is_off() -> None:
    assert {f"{owner}.{name}" for owner, names in GUARDED.items() for name in names} <= guarded("1")
    assert guarded("0") == set()


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["tp2pp2", "tp1pp4"])
def test_ranks_that_agree_are_left_alone_whatever_they_do(
    tmp_path: Path, topology: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They evict, preempt, restore from every tier, abort and flush, and say what an engine without a cache says."""
    with ThreadEngine(config(cache="off")) as alone:
        expected = [answer.tokens for answer in ask(alone, *turns(SERIALS)).values()]
    plant("", tmp_path, monkeypatch)
    settings = compared(tmp_path, topology, "stop", device_pages=24, tiers=replace(EAGER, host_ratio=1.0))

    with EngineClient(settings, log_folder=tmp_path / "logs") as engine:
        for turn in range(3):
            requests = turns(SERIALS, name=f"{turn}/")
            commands: list[Command] = [Generate("given up", prompt(9, 50), 20), Abort("given up"), *requests]
            for command in commands:
                engine.send(command)
            answers = hear(engine, ["given up", *(request.request_id for request in requests)])
            assert [answers[request.request_id].tokens for request in requests] == expected
            if turn == 1:
                assert answered(engine, Flush(turn)).error is None

    status = main(["consensus-diff", str(tmp_path / "entries")])
    logs = [log.read_text() for log in sorted((tmp_path / "logs").glob("tp*.log"))]
    assert len(logs) == 4
    assert all("rank.ended" in log and "divergence" not in log for log in logs)
    assert (status, "entry" in capsys.readouterr().out) == (0, False)
    assert {name.partition(".")[0] for name in names_in(tmp_path / "entries")} >= GUARDED.keys()


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault and what is told of it.

    Attributes:
        sides: patterns of what most ranks have at the first difference, and of what the others have.
    """

    fault: str
    topology: str
    mode: Mode
    differs: str
    sides: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.fault}-{self.topology}"


TAKE = r"AckQueue\.take\(self\._what='L3 hits', count="
TAKEN = r"AckQueue\.take returns result\[\*\]\.identity=\['hit"
FAULTS = [
    Planted(
        "polls-alone",
        "tp2pp2",
        "stop",
        "parameters",
        (rf"pp0/tp0 pp0/tp1: {TAKE}0\)", rf"pp1/tp0 pp1/tp1: {TAKE}[1-4]\)"),
    ),
    Planted(
        "polls-alone",
        "tp1pp4",
        "stop",
        "parameters",
        (rf"pp0/tp0 pp1/tp0 pp2/tp0: {TAKE}0\)", rf"pp3/tp0: {TAKE}[1-4]\)"),
    ),
    Planted(
        "skips",
        "tp2pp2",
        "stop",
        "call order",
        (r"pp0/tp0 pp0/tp1 pp1/tp0: Controller\.step\(\)", r"pp1/tp1: Scheduler\.\w+\(.*\)"),
    ),
    Planted(
        "other-ids",
        "tp2pp2",
        "report",
        "results",
        (
            rf"pp0/tp0 pp1/tp0 pp1/tp1: {TAKEN} (?P<first>\w+)\+7 0 None'.*\]",
            rf"pp0/tp1: {TAKEN} (?!(?P=first))\w+\+7 0 None'.*\]",
        ),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("planted", FAULTS, ids=str)
def test_every_rank_tells_a_planted_fault_and_so_do_the_logs(
    tmp_path: Path, planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(planted.fault, tmp_path, monkeypatch)
    settings = compared(tmp_path, planted.topology, planted.mode)

    with (
        EngineClient(settings, log_folder=tmp_path / "logs") as engine,
        pytest.raises(RankFailure, match=r"rank consensus, entry \d+"),
    ):
        ask(engine, *turns(SERIALS))

    most, others = planted.sides
    told = re.compile(rf"Found rank divergence at entry (\d+): {planted.differs} differs?\n  {most}\n  {others}\n")
    found = [told.search(log.read_text()) for log in sorted((tmp_path / "logs").glob("tp*.log"))]
    numbers = {one and one[1] for one in found}
    assert (len(found), len(numbers), None in numbers) == (4, 1, False)
    assert main(["consensus-diff", str(tmp_path / "entries")]) == 1
    assert f"\nentry {numbers.pop()}: {planted.differs}; " in capsys.readouterr().out


def test_a_rank_that_dies_is_named_as_without_the_checker(tmp_path: Path) -> None:
    settings = config(topology="tp2pp1", rank_consensus="stop", rank_consensus_log_folder=str(tmp_path / "entries"))

    with EngineClient(settings) as engine:
        ask(engine, *turns([1]))
        os.kill(children_of(engine.pid)[1], signal.SIGKILL)

        with pytest.raises(RankFailure, match="rank 1: tp1pp0: killed by SIGKILL"):
            engine.receive()


def test_what_keeps_all_ranks_from_starting_is_told_as_without_the_checker() -> None:
    with pytest.raises(ConfigError, match="no storage backend 'nowhere'"):
        EngineClient(config(topology="tp2pp1", rank_consensus="stop", store=StoreTarget(backend="nowhere")))
