"""How long a store is left alone, by configuration."""

from __future__ import annotations

import logging

import pytest

from hicache_storage.config import from_mapping
from hicache_storage.errors import ConfigError
from hicache_storage.middleware import BreakerLayer, MiddlewareOptions, wrap
from hicache_storage.registry import resolve_store
from hicache_storage.testing.faults import Fault, FaultyStore
from hicache_storage.testing.memory import MemoryStore


def test_a_dead_store_is_never_left_alone_for_longer_than_configured(caplog: pytest.LogCaptureFixture) -> None:
    options = MiddlewareOptions(breaker_failures=1, breaker_open_s=1e-6, breaker_max_open_s=4e-6)
    store = wrap(FaultyStore(MemoryStore(), [Fault("stat", "raise")]), options)
    assert isinstance(store, BreakerLayer)

    with caplog.at_level(logging.WARNING, BreakerLayer.__module__):
        for _ in range(5):
            while store.state == "open":
                pass
            store.exists_many(["a"])

    assert [record.args[1] for record in caplog.records if isinstance(record.args, tuple)] == [
        1e-6,
        2e-6,
        4e-6,
        4e-6,
        4e-6,
    ]


def test_the_longest_time_may_come_from_url_and_environment() -> None:
    by_url = resolve_store("memory://?middleware.breaker_max_open_s=5", from_mapping({}, "extra config"), {})
    by_variable = resolve_store("memory", {}, {"HICACHE_MIDDLEWARE_BREAKER_MAX_OPEN_S": "5"})

    assert by_url.middleware.breaker_max_open_s == by_variable.middleware.breaker_max_open_s == 5


@pytest.mark.parametrize("wrong", [0, -1])
def test_no_time_at_all_is_refused(wrong: float) -> None:
    with pytest.raises(ConfigError, match="breaker_max_open_s"):
        MiddlewareOptions(breaker_max_open_s=wrong)
