"""The same collectives over real processes and gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.processes import awaited

RANK = """
import json, sys
from datetime import timedelta
from torch import distributed
from hicache_storage.engine_integration.parallel.agree import agree_min
from hicache_storage.engine_integration.parallel.torch_group import TorchGroup
from hicache_storage.errors import RankFailure

rank, meeting, leaver = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2,
                               timeout=timedelta(seconds=60))
group = TorchGroup()
said = [agree_min(group, "hits", lambda: 7 + rank)]
for failing in range(2):
    try:
        agree_min(group, "load", lambda: 1 // int(rank != failing))
    except RankFailure as failure:
        said.append([failure.step, failure.reasons])
if leaver == rank:
    print(json.dumps(said), flush=True)
    import os
    os._exit(0)
if leaver >= 0:
    try:
        agree_min(group, "lost", lambda: 1)
    except RankFailure as failure:
        said.append(failure.step)
print(json.dumps(said), flush=True)
import os
os._exit(0)
"""


def run_ranks(meeting: Path, leaver: int) -> list[list[object]]:
    command = [sys.executable, "-c", RANK]
    with ExitStack() as running:
        ranks = [
            running.enter_context(
                awaited(subprocess.Popen([*command, str(rank), str(meeting), str(leaver)], stdout=subprocess.PIPE))
            )
            for rank in range(2)
        ]
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    return [json.loads(output) for output in outputs]


def test_processes_agree_and_fail_alike(tmp_path: Path) -> None:
    failures = [["load", {str(failing): "ZeroDivisionError: integer division or modulo by zero"}] for failing in (0, 1)]

    said = run_ranks(tmp_path / "meeting", leaver=-1)

    assert said == [[7, *failures]] * 2


def test_a_process_that_is_gone_fails_the_collective_of_the_other(tmp_path: Path) -> None:
    survivor, _ = run_ranks(tmp_path / "meeting", leaver=1)

    assert survivor[-1] == "lost"
