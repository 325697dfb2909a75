"""Ten thousand random operations under every policy: books, pages, bytes and keys are right after each of them."""

from __future__ import annotations

import random

import pytest

from hicache_storage.engine_integration.options import EVICTION_POLICIES, EvictionPolicy
from tests.engine_integration.radix.walk import Walk


@pytest.mark.slow
@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_every_book_is_right_after_every_step(rng: random.Random, policy: EvictionPolicy) -> None:
    walk = Walk(rng, policy)

    for _ in range(10_000):
        walk.step()
    walk.finish()

    assert walk.pools[0].held == walk.pools[1].held == set()


def test_two_ranks_that_make_the_same_calls_have_the_same_tree() -> None:
    ranks = [Walk(random.Random(7), "lfu") for _ in range(2)]

    for _ in range(300):
        for rank in ranks:
            rank.step()

    said = [
        [(n.id, n.ids, n.device.pages, n.host.pages, n.uses, n.stored) for n in r.tree.books.nodes()] for r in ranks
    ]
    assert said[0] == said[1]
    assert len(said[0]) > 5
