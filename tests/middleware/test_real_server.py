"""Every layer around a real server that is killed and started again: nothing hangs, and nobody has to open the store anew."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_storage import open_store
from hicache_storage.backends.mooncake import MooncakeOptions, MooncakeStore
from hicache_storage.backends.redis import RedisStore
from hicache_storage.config import Secret
from hicache_storage.errors import StoreError, StoreUnavailable
from hicache_storage.middleware import (
    BreakerLayer,
    DeadlineLayer,
    GuardLayer,
    Layer,
    MetricsLayer,
    ReadBudgetLayer,
    RetryLayer,
    WriteBudgetLayer,
)
from hicache_storage.store import ObjectStore
from hicache_storage.testing.bodies import body_of
from hicache_storage.testing.services.mooncake import HOW_TO_GET, MooncakeService
from hicache_storage.testing.services.redis_server import RedisServer
from hicache_storage.types import ObjectWrite, RangeRead, Status
from tests.backends.redis.back_door import redis_options
from tests.services import require

pytest_plugins = ["tests.backends.redis.services", "tests.backends.s3.fixtures"]

PATIENT_S = 60.0
"""A deadline that a busy machine does not reach."""

LAYERS: dict[str, dict[str, object]] = {
    "metrics": {"metrics": True},
    "write budget": {"write_budget_nbytes": "1MiB"},
    "read budget": {"read_budget_nbytes": "1MiB"},
    "breaker": {"breaker_failures": 2, "breaker_open_s": 0.001},
    "deadline": {"deadline_s": PATIENT_S},
    "retry": {"retry_attempts": 2, "retry_base_s": 0.001},
    "encryption": {"encryption_key_file": "KEY"},
    "faults": {"faults": {"delay_rate": 0.5, "delay_s": 0.001}},
}
BODIES = {f"k{number}": body_of(str(number), 50_000 + number) for number in range(4)}
BACK_WITHIN_S = 60.0


def layered(server: RedisServer, tmp_path: Path, middleware: dict[str, object]) -> ObjectStore:
    key_file = tmp_path / "key"
    key_file.write_text("ab" * 32)
    given = {name: str(key_file) if value == "KEY" else value for name, value in middleware.items()}
    return open_store(server.url, {"deadline_s": PATIENT_S, "middleware": given})


def written(store: ObjectStore) -> list[Status]:
    return [outcome.status for outcome in store.write_many([ObjectWrite(key, [body]) for key, body in BODIES.items()])]


def assert_readable(store: ObjectStore) -> None:
    targets = {key: bytearray(len(body)) for key, body in BODIES.items()}
    reads = [RangeRead(key, 0, [target], len(target)) for key, target in targets.items()]

    assert [outcome.status for outcome in store.read_many(reads)] == [Status.HIT] * len(BODIES)
    assert targets == BODIES


def until_it_works(call: Callable[[], object]) -> None:
    """Repeat *call* until it raises no more: an open breaker asks again only after a moment."""
    give_up_at = time.monotonic() + BACK_WITHIN_S
    while True:
        try:
            call()
        except StoreError:
            assert time.monotonic() < give_up_at
        else:
            return


def layer_of(store: ObjectStore, kind: type[Layer]) -> Layer:
    while not isinstance(store, kind):
        assert isinstance(store, Layer), f"there is no {kind.__name__}"
        store = store.inner
    return store


@pytest.mark.parametrize("names", [*([name] for name in LAYERS), list(LAYERS)], ids="+".join)
def test_a_server_that_was_away_is_used_again(own_server: RedisServer, tmp_path: Path, names: list[str]) -> None:
    middleware = {option: value for name in names for option, value in LAYERS[name].items()}
    with layered(own_server, tmp_path, middleware) as store:
        assert written(store) == [Status.STORED] * len(BODIES)
        assert_readable(store)
        own_server.kill()
        for _ in range(3):
            assert written(store) == [Status.FAILED] * len(BODIES)
            with pytest.raises(StoreUnavailable):
                store.read_into("k0", 0, [bytearray(1)])
        own_server.start()

        until_it_works(lambda: store.stat("k0"))

        assert written(store) == [Status.STORED] * len(BODIES)
        assert_readable(store)


def test_a_breaker_is_open_while_the_server_is_away(own_server: RedisServer, tmp_path: Path) -> None:
    with layered(own_server, tmp_path, LAYERS["breaker"]) as store:
        breaker = layer_of(store, BreakerLayer)
        assert isinstance(breaker, BreakerLayer)
        own_server.kill()
        written(store), written(store)
        assert breaker.state != "closed"
        own_server.start()

        until_it_works(lambda: store.stat("k0"))

        assert breaker.state == "closed"


def test_a_retry_bridges_a_restart(own_server: RedisServer) -> None:
    def start(_: float) -> None:
        own_server.start()

    inner = RedisStore(redis_options(url=Secret(own_server.url), deadline_s=PATIENT_S))
    with RetryLayer(inner, attempts=2, sleep=start) as store:
        own_server.kill()

        assert written(store) == [Status.STORED] * len(BODIES)


def test_a_deadline_ends_what_a_silent_server_holds_up(own_server: RedisServer) -> None:
    inner = RedisStore(redis_options(url=Secret(own_server.url), deadline_s=PATIENT_S))
    with DeadlineLayer(inner, 0.2) as store:
        written(store)
        own_server.pause()
        began_s = time.monotonic()

        failed = written(store)

        assert time.monotonic() - began_s < PATIENT_S / 2
        own_server.resume()
        assert failed == [Status.FAILED] * len(BODIES)


def test_budgets_are_given_back_while_the_server_is_away(own_server: RedisServer, tmp_path: Path) -> None:
    with layered(own_server, tmp_path, LAYERS["write budget"] | LAYERS["read budget"]) as store:
        own_server.kill()
        written(store)
        store.read_many([RangeRead(key, 0, [bytearray(10)]) for key in BODIES])

        for kind in (WriteBudgetLayer, ReadBudgetLayer):
            layer = layer_of(store, kind)
            assert isinstance(layer, WriteBudgetLayer | ReadBudgetLayer)
            assert layer.budget.in_flight_nbytes == 0


def test_metrics_say_when_the_server_was_away(own_server: RedisServer, tmp_path: Path) -> None:
    with layered(own_server, tmp_path, LAYERS["metrics"]) as store:
        assert isinstance(store, MetricsLayer)
        own_server.kill()
        written(store)
        own_server.start()
        written(store)

        seen = store.metrics.snapshot()["write"]

    assert (seen["calls"], seen["StoreUnavailable"], seen["stored"]) == (2, len(BODIES), len(BODIES))


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "s3://bucket?access_key_id=k&secret_access_key=s"])
def test_a_backend_that_keeps_deadlines_is_not_guarded_with_a_copy(url: str) -> None:
    with open_store(url, {"middleware": {"deadline_s": 1}}) as store:
        assert isinstance(store, DeadlineLayer)
        assert not isinstance(store.inner, GuardLayer)


@pytest.mark.parametrize("direct_reads", [True, False])
def test_mooncake_keeps_deadlines_unless_it_reads_without_a_copy(direct_reads: bool) -> None:
    require("mooncake", MooncakeService.available(), HOW_TO_GET)
    options = MooncakeOptions(url="mooncake://127.0.0.1:1", direct_reads=direct_reads)

    with MooncakeStore(options) as store:
        assert store.capabilities.keeps_deadline is not direct_reads
