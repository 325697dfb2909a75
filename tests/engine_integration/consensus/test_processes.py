"""The checker over real processes and gloo, switched on as an operator does."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from hicache_storage.cli.main import main
from tests.processes import awaited

RANK = """
import logging, os, sys
from datetime import timedelta
from torch import distributed
from hicache_storage.engine_integration.consensus import Checker, ConsensusOptions, rank_consensus
from hicache_storage.engine_integration.parallel.torch_group import TorchGroup
from hicache_storage.errors import RankFailure
from hicache_storage.layout import Topology

rank, meeting = int(sys.argv[1]), sys.argv[2]
logging.basicConfig(format="%(message)s")
distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=4,
                               timeout=timedelta(seconds=60))

@rank_consensus(same_params=True, same_results=True)
def match(request_id, cached):
    return object() if request_id == "opaque" else (6 if (rank, request_id) == (3, "r150") else 4)

with Checker(TorchGroup(), Topology.parse("tp2pp2"), ConsensusOptions.from_environment()) as checker:
    with checker.guard():
        match("opaque", {"b", "a", str(len("c"))})
        for turn in range(200):
            match(f"r{turn}", {1, 2})
print(len(checker.divergences), flush=True)
distributed.barrier()
os._exit(0)
"""


@pytest.mark.slow
def test_processes_report_where_they_parted_and_their_logs_say_so_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    environment = dict(os.environ) | {
        "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1",
        "HICACHE_RANK_CONSENSUS_LOG_FOLDER": str(logs),
        "HICACHE_RANK_CONSENSUS_HISTORY": "2",
        "PYTHONHASHSEED": "random",
    }
    with ExitStack() as running:
        ranks = [
            running.enter_context(
                awaited(
                    subprocess.Popen(
                        [sys.executable, "-c", RANK, str(rank), str(tmp_path / "meeting")],
                        env=environment,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )
            )
            for rank in range(4)
        ]
        ended = [rank.communicate(timeout=120) for rank in ranks]
    status = main(["consensus-diff", str(logs)])

    for out, err in ended:
        assert out == "1\n"
        assert "Found rank divergence at entry 303: results differ" in err
        assert "pp0/tp0 pp0/tp1 pp1/tp0: match returns result=4" in err
        assert "pp1/tp1: match returns result=6" in err
        assert "302 match(request_id='r150', cached={1, 2})" in err
    assert status == 1
    assert "entry 303: results" in capsys.readouterr().out
