from __future__ import annotations

from collections import Counter

import pytest
import torch

from hicache_storage.engine_integration.reference_engine.pieces import Sampling
from hicache_storage.engine_integration.reference_engine.sampling import choose, uniform

LOGITS = torch.tensor([0.5, 2.0, -1.0, 2.0, 1.0])


def drawn(sampling: Sampling, draws: int = 4000) -> Counter[int]:
    return Counter(choose(LOGITS, sampling, position) for position in range(draws))


def test_without_temperature_the_first_of_the_likeliest_is_taken() -> None:
    assert [choose(LOGITS, Sampling(seed=seed), 3) for seed in range(5)] == [1] * 5


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    expected = torch.softmax(LOGITS / 0.7, dim=-1).tolist()

    found = drawn(Sampling(temperature=0.7, seed=11))

    assert [found[token] / 4000 for token in range(5)] == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(("top_p", "kept"), [(0.01, {1}), (0.5, {1, 3}), (0.85, {1, 3, 4}), (1.0, {0, 1, 2, 3, 4})])
def test_only_the_likeliest_tokens_with_the_wanted_share_are_drawn(top_p: float, kept: set[int]) -> None:
    assert set(drawn(Sampling(temperature=1.0, top_p=top_p, seed=2))) == kept


def test_draws_depend_on_seed_and_position_alone() -> None:
    texts = [[choose(LOGITS, Sampling(1.0, 1.0, seed), at) for at in range(40)] for seed in (1, 2, 1)]

    assert texts[0] == texts[2] != texts[1]


def test_draws_are_spread_evenly() -> None:
    draws = [uniform(7, position) for position in range(4000)]

    assert all(0 <= draw < 1 for draw in draws)
    assert sum(draws) / len(draws) == pytest.approx(0.5, abs=0.02)


def test_whatever_a_failed_restore_leaves_some_token_is_chosen() -> None:
    for logits in (torch.full((5,), float("nan")), torch.full((5,), float("-inf"))):
        assert choose(logits, Sampling(temperature=1.0, top_p=0.5), 1) in range(5)
