"""The same messages over real processes and gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.processes import awaited

STAGES = 3
RANK = """
import json, os, resource, sys
from datetime import timedelta
from torch import distributed
from hicache_storage.engine_integration.parallel.agree import SingleRank
from hicache_storage.engine_integration.parallel.pp import Position, StepSync
from hicache_storage.engine_integration.parallel.torch_link import TorchLink
from hicache_storage.errors import RankFailure

stage, meeting, case = int(sys.argv[1]), sys.argv[2], sys.argv[3]
distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=stage, world_size=3,
                               timeout=timedelta(seconds=60))
timeout_s = 0.5 if case == "late" and stage else 60
link = TorchLink(Position(stage, 3), tag=7, timeout_s=timeout_s)
other = StepSync(SingleRank(), TorchLink(Position(stage, 3), tag=8, timeout_s=60))
sync = StepSync(SingleRank(), link)

def failure(step, counts=lambda: (1,)):
    try:
        sync.agree(step, counts, 1)
    except RankFailure as failure:
        return failure.reasons

def answers():
    # The second link's messages are sent before and received after the first one's.
    if stage == 0:
        other.agree("other", lambda: (-1,), 1)
    said = [sync.agree("acks", lambda: (step, -step), 2) for step in range(40)]
    if stage:
        assert other.agree("other", lambda: (), 1) == [-1]
    said.append(failure("fails", lambda: (1 // 0,)))
    said.append(failure("loads" if stage == 1 else "backups"))
    return said

def memory():
    for step in range(20_000):
        if step == 2_000:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert sync.agree("acks", lambda: (step, 2, 3, 4, 5), 5)[0] == step
    link.close()
    return [link.num_on_way, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]

def late():
    if stage == 0:
        sys.stdin.read()
        return {}
    return failure("acks")

print(json.dumps({"answers": answers, "memory": memory, "late": late}[case]()), flush=True)
if case != "late":
    distributed.barrier()
elif stage:
    sys.stdin.read()
os._exit(0)
"""


@contextmanager
def started(commands: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Give a process for each of *commands*; their input stays open until they are communicated with."""
    with ExitStack() as running:
        yield [
            running.enter_context(
                awaited(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            )
            for command in commands
        ]


def run_stages(meeting: Path, case: str) -> list[object]:
    """Return what each stage printed. Those that wait for their input to end wait for the last stage."""
    said = []
    with started([[sys.executable, "-c", RANK, str(stage), str(meeting), case] for stage in range(STAGES)]) as stages:
        for stage in reversed(stages):
            assert stage.stdout is not None
            said.append(stage.stdout.readline() if stage is not stages[0] else stage.communicate(timeout=120)[0])
        for stage in stages:
            stage.communicate(timeout=120)
    return [json.loads(line) for line in reversed(said)]


def test_processes_follow_the_first_stage_and_fail_with_it(tmp_path: Path) -> None:
    first, second, third = run_stages(tmp_path / "meeting", "answers")

    assert isinstance(first, list)
    assert isinstance(second, list)
    assert isinstance(third, list)
    assert first[:40] == second[:40] == third[:40] == [[step, -step] for step in range(40)]
    assert first[40] == second[40] == third[40] == {"0": "ZeroDivisionError: integer division or modulo by zero"}
    assert first[41] is None
    assert second[41] == third[41] == {"0": "is at another step, in turn 42", "1": "is in turn 42"}


@pytest.mark.slow
def test_twenty_thousand_messages_leave_nothing_behind(tmp_path: Path) -> None:
    for said in run_stages(tmp_path / "meeting", "memory"):
        assert isinstance(said, list)
        on_way, grown_kib = said
        assert on_way == 0
        assert grown_kib < 4096


def test_a_stage_that_is_late_is_named_by_the_next_one_and_that_by_those_behind_it(tmp_path: Path) -> None:
    """A rank whose wait on gloo has passed its deadline is cut off from all others, and cannot tell them why."""
    _, second, third = run_stages(tmp_path / "meeting", "late")

    for reasons, stage in ((second, 0), (third, 1)):
        assert isinstance(reasons, dict)
        assert list(reasons) == [str(stage)]
        assert f"stage {stage}: " in reasons[str(stage)]


FAILING = """
import os, sys
from datetime import timedelta
from torch import distributed
from hicache_storage.engine_integration.parallel.agree import SingleRank
from hicache_storage.engine_integration.parallel.pp import Position, StepSync
from hicache_storage.engine_integration.parallel.torch_link import TorchLink
from hicache_storage.errors import RankFailure

stage, meeting = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=stage, world_size=2,
                               timeout=timedelta(seconds=60))
sync = StepSync(SingleRank(), TorchLink(Position(stage, 2), tag=7, timeout_s=60))
sync.agree("first", lambda: (1,), 1)
distributed.barrier()
if stage:
    sys.stdin.read()
for step in ("second", "third"):
    try:
        sync.agree(step, lambda: (1 // 0,), 1)
    except RankFailure as failure:
        print(failure.reasons[0], flush=True)
    if not stage:
        break
os._exit(0)
"""


def test_why_a_stage_has_failed_is_heard_after_its_process_has_ended(tmp_path: Path) -> None:
    """The next stage comes to that step later; only at the one behind it does it miss the stage."""
    why = "ZeroDivisionError: integer division or modulo by zero"
    meeting = str(tmp_path / "meeting")

    with started([[sys.executable, "-c", FAILING, str(stage), meeting] for stage in range(2)]) as (first, second):
        assert first.communicate(timeout=120)[0] == f"{why}\n"
        heard, missed = second.communicate(timeout=120)[0].splitlines()

    assert heard == why
    assert missed.startswith("stage 0: ")
