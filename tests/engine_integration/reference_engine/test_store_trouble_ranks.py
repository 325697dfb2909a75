"""Random failures and delays on single ranks of real processes: right tokens, no hang, no rank apart from the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from hicache_storage.engine_integration.reference_engine.client import EngineClient
from tests.engine_integration.reference_engine.asking import PAGE_TOKENS, config
from tests.engine_integration.reference_engine.places import file_place
from tests.engine_integration.reference_engine.thread_ranks import ThreadEngine
from tests.engine_integration.reference_engine.trouble import STORED, Trial

FAULTS = {
    "error_rate": 0.1,
    "miss_rate": 0.05,
    "short_rate": 0.05,
    "corrupt_rate": 0.1,
    "lost_write_rate": 0.05,
    "lost_answer_rate": 0.05,
    "delay_rate": 0.2,
    "delay_s": 0.02,
}
VICTIMS = {"tp2pp1": ["tp1pp0"], "tp1pp2": ["tp0pp1"], "tp2pp2": ["tp0pp0", "tp1pp1"]}


@pytest.fixture(scope="module", params=VICTIMS)
def topology(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def trial(topology: str) -> Iterator[Trial]:
    """An engine of processes that ends where two ranks part. Chunks are pages, and the oracle sums as it does: bits are equal."""
    same = partial(config, topology=topology, chunk_tokens=PAGE_TOKENS, layer_partition=2, head_partition=2)
    with EngineClient(same(rank_consensus="stop")) as engine, ThreadEngine(same(cache="off")) as oracle:
        yield Trial(engine, oracle)


def faults(seed: int, only_ranks: Sequence[str] | None) -> dict[str, object]:
    return {"breaker_open_s": 0.01, "faults": {**FAULTS, "seed": seed, "only_ranks": only_ranks}}


@pytest.mark.parametrize("victims", ["some", "all"])
def test_random_troubles_of_ranks_cost_no_token(trial: Trial, topology: str, tmp_path: Path, victims: str) -> None:
    ranks = VICTIMS[topology] if victims == "some" else None
    prompts = trial.new_prompts(3)

    with trial.attached(file_place(tmp_path, middleware=faults(7, ranks))):
        for _ in range(3):
            trial.store(prompts)
        struck = trial.counted()

    assert sum(count for name, count in struck.items() if "_failed." in name) > 0
    with trial.attached(file_place(tmp_path)):
        trial.store(prompts)
        assert trial.say(prompts) == [STORED] * 3
