"""Ranks that would do different things at a divergence are not compared at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hicache_storage.engine_integration.consensus import Checker
from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.errors import RankFailure
from hicache_storage.layout import Topology
from tests.engine_integration.consensus.ranks import PATIENCE_S, options


def test_ranks_of_which_some_would_stop_and_others_go_on_are_refused(tmp_path: Path) -> None:
    topology = Topology.parse("tp2pp2")

    def made(end: ThreadGroup) -> object:
        chosen = options(on_divergence="stop" if end.rank == 3 else "report", log_folder=tmp_path / f"{end.rank}")
        try:
            return Checker(end, topology, chosen)
        except RankFailure as failure:
            return failure.reasons

    with ThreadPoolExecutor(4) as ranks:
        reasons = list(ranks.map(made, ThreadGroup.of(4, timeout_s=PATIENCE_S)))

    assert reasons == [{0: "says 0", 1: "says 0", 2: "says 0", 3: "says 1"}] * 4
    assert list(tmp_path.iterdir()) == []
