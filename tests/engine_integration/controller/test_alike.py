"""Ranks that cannot decide alike do not begin to: tiers with other options, a store that one of them cannot use."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Sequence
from dataclasses import fields, replace

import pytest

from hicache_storage.engine_integration.controller import CachedTokens, Controller, Pools, StoreConnection
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.parallel.ranks import Ranks as Peers
from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.engine_integration.store_tier.worker import Worker
from hicache_storage.engine_integration.tiers.slots import PageAllocator
from hicache_storage.errors import RankFailure
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.controller.engine import PAGE_TOKENS
from tests.engine_integration.controller.ranks import Ranks, options
from tests.engine_integration.controller.test_rank_faults import SHAPES, judge_equal
from tests.engine_integration.parallel.pipeline import PATIENCE_S, Place, on_all, places

OTHERS: dict[str, object] = {
    "write_policy": "write_back",
    "selective_hits": 3,
    "eviction_policy": "lfu",
    "host_eviction_policy": "slru",
    "load_back_threshold_tokens": 11,
    "prefetch_policy": "best_effort",
    "prefetch_threshold_tokens": 512,
    "prefetch_timeout_base_s": 1.5,
    "prefetch_timeout_per_ki_token_s": 0.5,
    "prefetch_host_fraction": 0.25,
    "store_batch_pages": 64,
    "store_retries": 4,
    "store_backpressure": False,
    "fetch_or_recompute": True,
    "prefill_tokens_per_s": 2000.0,
}
"""A value that is not `USUAL` of every option by which the controller decides."""

USUAL = TierOptions(prefill_tokens_per_s=1000.0)
SIZES: dict[str, object] = {"host_nbytes": 1 << 20, "host_ratio": 3.0, "host_memory_fraction": 0.5}


def controllers(stages: int, size: int, own: Sequence[TierOptions]) -> list[Controller | Exception]:
    """Return what each rank has made or raised, each with options of its own."""
    backups, loads = (ThreadGroup.of(size, timeout_s=PATIENCE_S) for _ in range(2))

    def made(place: Place) -> Controller:
        ranks = Peers(place.sync, backups[place.rank], loads[place.rank], PATIENCE_S)
        pools = Pools(PageAllocator(26), PageAllocator(22))
        return Controller(PAGE_TOKENS, pools, options=own[place.rank], ranks=ranks)

    return list(on_all(places(stages, size // stages), made))


def give_up(made: Sequence[Controller | Exception]) -> None:
    for controller in made:
        if isinstance(controller, Controller):
            controller._backups.close()
            controller._loads.close()


def test_every_option_is_either_compared_between_ranks_or_a_size_of_a_ranks_own() -> None:
    assert [field.name for field in fields(TierOptions)] == [*OTHERS, *SIZES]


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(("stages", "size"), [(1, 2), (2, 2), (2, 4)])
def test_options_that_differ_between_ranks_are_refused_and_named(stages: int, size: int, name: str) -> None:
    odd = replace(USUAL, **{name: OTHERS[name]})  # type: ignore[arg-type]
    made = controllers(stages, size, [*[USUAL] * (size - 1), odd])

    assert isinstance(made[-1], RankFailure)
    assert re.findall(r"(\w+)=", made[-1].reasons[size - 1]) == [name]
    give_up(made)


@pytest.mark.parametrize("name", SIZES)
def test_how_the_host_pool_got_its_size_is_each_ranks_own_affair(name: str) -> None:
    made = controllers(2, 4, [replace(USUAL, **{name: SIZES[name]}), *[USUAL] * 3])  # type: ignore[arg-type]

    assert [type(one) for one in made] == [Controller] * 4
    give_up(made)


def test_a_controller_that_is_refused_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())

    made = controllers(1, 2, [USUAL, replace(USUAL, store_retries=7)])

    assert [type(one) for one in made] == [RankFailure] * 2
    assert set(threading.enumerate()) <= before


def attach(ranks: Ranks) -> list[object]:
    """Return what attaching a store raised on each rank, None where it did not."""

    def attached(rank: int) -> object:
        try:
            ranks.engines[rank].attach(MemoryStore())
        except Exception as error:
            return error
        return None

    return ranks.all(attached)


@pytest.mark.parametrize("part", ["hicache-probe", "hicache-prefetch", "hicache-writeback"])
@pytest.mark.parametrize(("stages", "size"), SHAPES)
def test_a_store_that_one_rank_cannot_attach_is_attached_on_none(
    monkeypatch: pytest.MonkeyPatch, stages: int, size: int, part: str
) -> None:
    ranks = Ranks([None] * size, options(prefetch_policy="wait_complete"), stages=stages)
    before, make, serial = set(threading.enumerate()), Worker.__init__, itertools.count()

    def made(self: Worker[object], name: str, *calls: object) -> None:
        if name == part and next(serial) == 0:
            raise RuntimeError("can't start new thread")
        make(self, name, *calls)  # type: ignore[arg-type]

    monkeypatch.setattr(Worker, "__init__", made)

    for outcome in attach(ranks):
        assert isinstance(outcome, RankFailure)
        (reason,) = outcome.reasons.values()
        assert reason == "RuntimeError: can't start new thread"
    assert [engine.controller.is_attached for engine in ranks.engines] == [False] * size
    assert set(threading.enumerate()) <= before

    assert attach(ranks) == [None] * size
    ranks.generate()
    ranks.restart()
    assert ranks.generate() == [CachedTokens(store=8 * PAGE_TOKENS)] * size
    judge_equal(ranks)
    ranks.close()


@pytest.mark.parametrize(("stages", "size"), SHAPES)
def test_a_rank_that_only_reads_among_those_that_write_is_refused_on_all(
    monkeypatch: pytest.MonkeyPatch, stages: int, size: int
) -> None:
    ranks = Ranks([None] * size, options(), stages=stages)
    connect = ranks.engines[-1].controller.attach

    def only_reading(connection: StoreConnection) -> None:
        connect(replace(connection, writes=False))

    monkeypatch.setattr(ranks.engines[-1].controller, "attach", only_reading)

    for outcome in attach(ranks):
        assert isinstance(outcome, RankFailure)
        assert outcome.reasons[size - 1] == "says 0"
    assert [engine.controller.is_attached for engine in ranks.engines] == [False] * size
    judge_equal(ranks)
    ranks.close()
