from __future__ import annotations

import pytest

from hicache_storage.engine_integration.reference_engine import outcome
from hicache_storage.engine_integration.reference_engine.outcome import Broken, Ended
from hicache_storage.errors import ConfigError, HiCacheError, InvariantError, LayoutError, RankFailure, StoreUnavailable


def agreed(cause: Exception) -> RankFailure:
    try:
        raise RankFailure("attach", {0: str(cause)}) from cause
    except RankFailure as failure:
        return failure


def test_an_engine_that_was_shut_down_has_no_error() -> None:
    assert Ended({}).error("serve") is None


@pytest.mark.parametrize("kind", [ConfigError, LayoutError, StoreUnavailable, InvariantError])
def test_an_error_of_ours_keeps_its_class(kind: type[HiCacheError]) -> None:
    ended = Ended({1: "tp1pp0: it is so"}, Broken.of(kind("it is so")))

    error = outcome.decode_ended(outcome.encode(ended)).error("start")

    assert type(error) is kind
    assert str(error) == "tp1pp0: it is so"


@pytest.mark.parametrize("broken", [None, Broken("KeyError", "'x'"), Broken.of(RankFailure("step", {0: "gone"}))])
def test_anything_else_is_a_rank_failure_that_names_the_rank(broken: Broken | None) -> None:
    error = Ended({3: "tp1pp1: why"}, broken).error("serve")

    assert isinstance(error, RankFailure)
    assert error.reasons == {3: "tp1pp1: why"}


def test_a_rank_tells_its_own_cause_of_an_agreed_failure() -> None:
    assert Broken.of(agreed(ConfigError("wrong"))) == Broken("ConfigError", "wrong")
    assert not Broken.of(agreed(RuntimeError("connection reset"))).is_cause
