"""Pipelines of real processes over gloo whose stores fail and are slow at random: the tokens are those of a single process."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed

from hicache_storage.engine_integration.options import PrefetchPolicy
from hicache_storage.engine_integration.reference_engine.client import EngineClient
from hicache_storage.engine_integration.reference_engine.engine_config import StoreTarget
from hicache_storage.engine_integration.reference_engine.messages import Flush
from hicache_storage.engine_integration.reference_engine.process_peers import ProcessPeers
from hicache_storage.layout import Topology
from tests.engine_integration.reference_engine.asking import EAGER, GQA, MLA, answered, ask, config, counters, turns
from tests.engine_integration.reference_engine.thread_ranks import ThreadEngine

TIGHT = 24
SERIALS = [1, 2, 3, 4]
TROUBLE = {
    "error_rate": 0.02,
    "miss_rate": 0.01,
    "corrupt_rate": 0.02,
    "lost_answer_rate": 0.01,
    "delay_rate": 0.2,
    "delay_s": 0.02,
}


def faulty_store(folder: Path, seed: int) -> StoreTarget:
    """Return a file store with other troubles on every rank."""
    middleware = {"breaker_open_s": 0.01, "faults": {**TROUBLE, "seed": seed}}
    return StoreTarget(backend=f"file://{folder}", extra_config=json.dumps({"middleware": middleware}))


@pytest.mark.parametrize("policy", ["wait_complete", "timeout"])
@pytest.mark.parametrize("topology", ["tp2pp2", "tp1pp4"])
def test_random_troubles_of_stores_cost_a_pipeline_no_token(
    tmp_path: Path, topology: str, policy: PrefetchPolicy
) -> None:
    shape = MLA if topology == "tp1pp4" else GQA
    tiers = replace(EAGER, host_ratio=1.0, prefetch_policy=policy, prefetch_timeout_base_s=0.05, store_batch_pages=2)
    settings = config(
        shape,
        topology=topology,
        device_pages=TIGHT,
        tiers=tiers,
        store=faulty_store(tmp_path, seed=len(policy)),
    )
    with ThreadEngine(config(shape, cache="off")) as alone:
        expected = ask(alone, *turns(SERIALS))

    with EngineClient(settings) as engine:
        said = []
        for number in range(3):
            said.append(ask(engine, *turns(SERIALS)))
            assert answered(engine, Flush(number)).error is None
        counted = counters(engine)

    for answers in said:
        assert {name: answer.tokens for name, answer in answers.items()} == {
            name: answer.tokens for name, answer in expected.items()
        }
    assert counted["pages_written_back"] > 0
    assert counted.get("pages_prefetched", 0) > 0 or policy == "timeout"  # which may stop every one of them
    assert (counted["now.device_pages_held"], counted["now.host_pages_held"]) == (0, 0)


def test_every_group_has_the_deadline_that_it_was_given(tmp_path: Path) -> None:
    """PyTorch gives a group that is made from another one half an hour; a rank that hangs would go unnoticed as long."""
    with (tmp_path / "meeting").open("w+b") as meeting:
        peers = ProcessPeers(
            Topology(), 0, rendezvous=meeting.fileno(), uses_gpu=False, timeout_s=7, background_timeout_s=9
        )
        background = peers.new_groups(1)
        made = [distributed.group.WORLD, peers._tp_group, *(made for _, made in peers._groups)]
        seconds = [
            group._get_backend(torch.device("cpu")).options._timeout / timedelta(seconds=1)
            for group in made
            if group is not None
        ]
        peers.drop_groups(background)
        peers.close()

    assert seconds == [7, 7, 7, 7, 9]
