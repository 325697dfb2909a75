"""Emptying the store: all ranks together or a failure on all of them, and nothing of it is left to be decided alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from hicache_storage.engine_integration.controller import CachedTokens
from hicache_storage.errors import AccessDenied, RankFailure
from hicache_storage.testing.faults import Fault, FaultyStore, Gate, Op
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.controller.engine import PAGE_TOKENS, Engine
from tests.engine_integration.controller.ranks import HASHES, Ranks, options
from tests.engine_integration.controller.test_rank_faults import SHAPES, judge_equal
from tests.engine_integration.parallel.pipeline import PATIENCE_S

pytestmark = pytest.mark.usefixtures("busy_threads")


def ranks_of(stages: int, size: int) -> tuple[Ranks, list[FaultyStore]]:
    """Return ranks that have a prompt in the store of each, on the host and on the device."""
    stores = [FaultyStore(MemoryStore()) for _ in range(size)]
    ranks = Ranks(list(stores), options(prefetch_policy="wait_complete"), stages=stages)
    ranks.generate()
    ranks.all(lambda rank: ranks.engines[rank].controller.settle())
    assert all(pages_in(store) == 8 for store in stores)
    return ranks, stores


def pages_in(store: FaultyStore) -> int:
    return sum(1 for info in store.list_keys() if info.key.split("_")[0] in HASHES)


def flush(ranks: Ranks) -> list[object]:
    """Return what `flush_store` returned or raised on each rank; nobody is gone for that."""

    def flushed(rank: int) -> object:
        try:
            return ranks.engines[rank].controller.flush_store()
        except RankFailure as failure:
            return failure

    return ranks.all(flushed)


def known_pages(engine: Engine) -> int:
    """Return how many pages of the prompt the tree believes to be in the store."""
    tree = engine.controller.tree
    nodes, found = [tree.root], 0
    for node in nodes:
        nodes += node.children.values()
        found += node.num_pages if node.is_stored else 0
    return found


@pytest.mark.parametrize(("stages", "size"), [(1, 1), *SHAPES])
def test_the_stores_of_all_ranks_are_emptied_and_every_rank_says_how_much_that_was(stages: int, size: int) -> None:
    ranks, stores = ranks_of(stages, size)

    assert flush(ranks) == [8 * size] * size

    assert [pages_in(store) for store in stores] == [0] * size
    assert [known_pages(engine) for engine in ranks.engines] == [0] * size
    ranks.close()


def test_ranks_that_share_a_store_delete_each_object_once_between_them() -> None:
    store = MemoryStore()
    ranks = Ranks([store] * 4, options(), stages=2)
    ranks.generate()
    ranks.all(lambda rank: ranks.engines[rank].controller.settle())

    assert flush(ranks) == [8] * 4

    assert list(store.list_keys()) == []
    ranks.close()


@pytest.mark.parametrize("op", ["list", "delete"])
@pytest.mark.parametrize(("stages", "size"), SHAPES)
def test_a_rank_that_cannot_is_named_on_every_rank_and_all_of_them_go_on_alike(stages: int, size: int, op: Op) -> None:
    for failing in range(size):
        ranks, stores = ranks_of(stages, size)
        stores[failing].rescript([Fault(op, "raise", error=AccessDenied("planted"))])

        outcomes = flush(ranks)

        for outcome in outcomes:
            assert isinstance(outcome, RankFailure), outcomes
            assert outcome.reasons.keys() == {failing}
            assert "AccessDenied: planted" in outcome.reasons[failing]
        judge_equal(ranks)
        assert [known_pages(engine) for engine in ranks.engines] == [0] * size
        stores[failing].rescript([])
        assert ranks.generate() == [CachedTokens(device=8 * PAGE_TOKENS)] * size
        judge_equal(ranks)
        assert [pages_in(store) for store in stores] == [8] * size
        ranks.close()


@pytest.mark.parametrize(("stages", "size"), SHAPES)
def test_a_rank_that_is_gone_is_missed_by_all_others(stages: int, size: int) -> None:
    for gone in range(size):
        ranks, _ = ranks_of(stages, size)
        ranks.leave(gone)

        outcomes = ranks.outcomes(lambda rank: rank == gone or ranks.engines[rank].controller.flush_store())  # noqa: B023 - called at once

        others = [outcome for rank, outcome in enumerate(outcomes) if rank != gone]
        assert all(isinstance(outcome, RankFailure) for outcome in others), outcomes
        ranks.give_up()


@pytest.mark.parametrize(("stages", "size"), SHAPES)
def test_no_rank_is_through_before_all_of_them_are(monkeypatch: pytest.MonkeyPatch, stages: int, size: int) -> None:
    """Else one that still deletes would take what another one has stored since."""
    ranks, stores = ranks_of(stages, size)
    gate, is_open, arrivals = Gate(), threading.Event(), threading.Semaphore(0)
    stores[-1].rescript([Fault("list", "delay", gate=gate)])
    for group in ranks.groups[4][:-1]:

        def all_gather(
            step: str, values: Sequence[int], gather: Callable[[str, Sequence[int]], list[list[int]]] = group.all_gather
        ) -> list[list[int]]:
            arrivals.release()
            return gather(step, values)

        monkeypatch.setattr(group, "all_gather", all_gather)

    def act(rank: int) -> bool:
        ranks.engines[rank].controller.flush_store()
        was_open = is_open.is_set()
        arrivals.release()
        return was_open

    def let_go() -> None:
        assert gate.entered.wait(PATIENCE_S)
        for _ in range(size - 1):
            assert arrivals.acquire(timeout=PATIENCE_S)
        is_open.set()
        gate.open()

    with ThreadPoolExecutor(1) as opener:
        opened = opener.submit(let_go)
        assert ranks.all(act) == [True] * size
        opened.result()
    ranks.close()
