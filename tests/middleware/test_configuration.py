"""Any store gets layers by configuration, in one documented order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from hicache_storage import open_store
from hicache_storage.config import from_mapping, refuse_unknown_variables
from hicache_storage.errors import ConfigError, StoreUnavailable
from hicache_storage.middleware import FaultOptions, Layer, MetricsLayer, MiddlewareOptions, wrap
from hicache_storage.registry import resolve_store
from hicache_storage.store import ObjectStore
from hicache_storage.testing.contract import StoreContract
from hicache_storage.testing.faults import Fault, FaultyStore
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import ObjectWrite, Outcome, RangeRead

T = TypeVar("T")

EVERYTHING = {
    "metrics": True,
    "write_budget_nbytes": "64MiB",
    "read_budget_nbytes": "64MiB",
    "breaker_failures": 5,
    "deadline_s": 30,
    "retry_attempts": 3,
}
ORDER = ["MetricsLayer", "WriteBudgetLayer", "ReadBudgetLayer", "BreakerLayer", "DeadlineLayer", "RetryLayer"]


def layers_of(store: ObjectStore) -> list[str]:
    names = []
    while isinstance(store, Layer):
        names.append(type(store).__name__)
        store = store.inner
    return names


class TestStoreWithEveryLayer(StoreContract):
    """The laws of a store hold through all layers."""

    shared_between_processes = False
    bounded = False

    @pytest.fixture
    def store(self) -> ObjectStore:
        return wrap(
            MemoryStore(),
            MiddlewareOptions(
                metrics=True,
                write_budget_nbytes=1 << 30,
                read_budget_nbytes=1 << 30,
                breaker_failures=1000,
                deadline_s=60.0,
                retry_attempts=2,
                retry_base_s=0.001,
                faults=FaultOptions(),
            ),
        )

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        inner = innermost(store)
        inner.delete(key)
        inner.write(key, [body])

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        inner = innermost(store)
        info = inner.stat(key)
        if info is None:
            return None
        body = bytearray(info.nbytes)
        assert inner.read_into(key, 0, [body])
        return bytes(body)


def innermost(store: ObjectStore) -> ObjectStore:
    while isinstance(store, Layer):
        store = store.inner
    return store


def test_layers_stand_in_the_documented_order(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("00" * 32)
    middleware = EVERYTHING | {"encryption_key_file": str(key_file), "faults": {"seed": 1}}
    options = {"path": str(tmp_path / "store"), "middleware": middleware}

    with open_store("file", options) as store:
        assert layers_of(store) == [*ORDER, "GuardLayer", "EncryptionLayer", "FaultLayer"]


def test_nothing_is_wrapped_that_nobody_asked_for() -> None:
    with open_store("memory") as store:
        assert type(store) is MemoryStore


def test_layers_come_from_a_url_an_object_and_the_environment() -> None:
    extra = from_mapping({"middleware": {"retry_attempts": 2}}, "extra config")

    resolved = resolve_store("memory://?middleware.metrics=true", extra, {"HICACHE_MIDDLEWARE_BREAKER_FAILURES": "4"})

    assert layers_of(resolved.open()) == ["MetricsLayer", "BreakerLayer", "RetryLayer"]
    sources = {setting.name: setting.source for setting in resolved.settings if "middleware" in setting.name}
    assert sources == {
        "middleware.metrics": "URL",
        "middleware.retry_attempts": "extra config",
        "middleware.breaker_failures": "environment variable HICACHE_MIDDLEWARE_BREAKER_FAILURES",
    }


def test_layers_of_one_backend_come_from_its_own_variables() -> None:
    environ = {
        "HICACHE_MEMORY_MIDDLEWARE": '{"retry_attempts": 2, "metrics": true}',
        "HICACHE_MEMORY_MIDDLEWARE_METRICS": "false",
        "HICACHE_MIDDLEWARE_RETRY_ATTEMPTS": "5",
        "HICACHE_MIDDLEWARE_BREAKER_FAILURES": "4",
    }

    resolved = resolve_store("memory", from_mapping({"middleware.breaker_failures": 7}, "extra config"), environ)

    assert resolved.middleware == MiddlewareOptions(retry_attempts=2, metrics=False, breaker_failures=7)
    sources = {setting.name: setting.source for setting in resolved.settings if "middleware" in setting.name}
    assert sources == {
        "middleware.metrics": "environment variable HICACHE_MEMORY_MIDDLEWARE_METRICS",
        "middleware.retry_attempts": "environment variable HICACHE_MEMORY_MIDDLEWARE",
        "middleware.breaker_failures": "extra config",
    }


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("HICACHE_FILE_IO_THREAD", "file has no option 'io_thread' .*HICACHE_FILE_IO_THREAD.*did you mean io_threads"),
        ("HICACHE_FILE_MIDDLEWARE_METRIC", "did you mean middleware_metrics"),
        ("HICACHE_FILE_MIDDLEWARE", "HICACHE_FILE_MIDDLEWARE is not valid JSON"),
        ("HICACHE_MIDDLEWARE_RETRY_ATEMPTS", "did you mean retry_attempts"),
        ("HICACHE_MIDDLEWARE", "middleware has no option '' .*HICACHE_MIDDLEWARE"),
        ("HICACHE_FILE", "file has no option '' .*HICACHE_FILE"),
    ],
)
def test_a_variable_that_means_nothing_is_refused(variable: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_store("file", {}, {variable: "1 or so"})


@pytest.mark.parametrize(
    "variable", ["HICACHE_REDIS_URLS", "HICACHE_FILES", "HICACHE_STORAGE_BACKEND", "HICACHE_REQUIRE", "HICACHE_RANK"]
)
def test_variables_of_others_are_no_concern_of_a_store(variable: str) -> None:
    resolve_store("file", {}, {variable: "x", "HICACHE_FILE_IO_THREAD": ""})


def test_a_variable_of_a_backend_with_a_longer_name_is_its_own() -> None:
    with pytest.raises(ConfigError):
        refuse_unknown_variables("file", ["path"], [], {"HICACHE_FILE_FAST_PATH": "/x"})

    refuse_unknown_variables("file", ["path"], ["file", "file-fast"], {"HICACHE_FILE_FAST_PATH": "/x"})


def test_layers_around_any_store_are_around_the_outermost_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HICACHE_MIDDLEWARE_METRICS", "true")
    monkeypatch.setenv("HICACHE_FILE_MIDDLEWARE_RETRY_ATTEMPTS", "2")

    with open_store("tiered", {"stores": [f"file://{tmp_path}"]}) as store:
        assert layers_of(store) == ["MetricsLayer"]
        tiers = getattr(innermost(store), "_tiers")  # noqa: B009 - of a type that this test need not know
        assert [layers_of(tier) for tier in tiers] == [["RetryLayer"]]


@pytest.mark.parametrize(
    ("middleware", "message"),
    [
        ({"retry_atempts": 3}, "did you mean retry_attempts"),
        ({"retry_attempts": 0}, "retry_attempts = 0"),
        ({"deadline_s": -1}, "deadline_s"),
        ({"deadline_s": "inf"}, "deadline_s"),
        ({"read_budget_nbytes": "lots"}, "read_budget_nbytes"),
        ("on", "expected an object"),
    ],
    ids=json.dumps,
)
def test_wrong_layer_option_names_itself(middleware: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_store("memory", {"middleware": middleware})


def test_metrics_count_operations_results_and_bytes() -> None:
    with open_store("memory", {"middleware": {"metrics": True}}) as store:
        assert isinstance(store, MetricsLayer)
        store.write_many([ObjectWrite("a", [b"12345"]), ObjectWrite("a", [b"12345"])])
        store.read_into("a", 0, [bytearray(2)])
        store.read_into("absent", 0, [bytearray(2)])
        with pytest.raises(Exception, match="bytes"):
            store.read_into("a", 4, [bytearray(2)])

        shown = store.metrics.snapshot()
        text = store.metrics.prometheus_text()

    assert shown["write"] | {"seconds": 0} == {"calls": 1, "seconds": 0, "nbytes": 10, "stored": 1, "already_there": 1}
    assert shown["read"] | {"seconds": 0} == {
        "calls": 3,
        "seconds": 0,
        "nbytes": 2,
        "hit": 1,
        "miss": 1,
        "RangeError": 1,
    }
    assert 'hicache_store_requests_total{backend="memory",op="read",result="hit"} 1' in text
    assert 'hicache_store_seconds_bucket{backend="memory",op="read",le="+Inf"} 3' in text


@pytest.mark.parametrize("error", [StoreUnavailable("no"), ValueError("a bug")], ids=["unavailable", "bug"])
def test_metrics_count_every_request_of_a_batch_that_raises(error: Exception) -> None:
    class Raising(MemoryStore):
        def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
            raise error

    store = MetricsLayer(Raising())

    with pytest.raises(type(error)):
        store.exists_many(["a", "b"])

    result = "StoreUnavailable" if isinstance(error, StoreUnavailable) else "failed"
    assert store.metrics.snapshot()["exists"] | {"seconds": 0} == {"calls": 1, "seconds": 0, "nbytes": 0, result: 2}


@pytest.mark.parametrize(
    "name", ["metrics", "write_budget_nbytes", "read_budget_nbytes", "retry_attempts", "encryption", "faults"]
)
def test_requests_are_built_once_through_every_layer(name: str, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("00" * 32)
    store: ObjectStore = FaultyStore(MemoryStore(), [Fault("write", "raise", nth=2), Fault("read", "raise", nth=2)])
    options = {
        "metrics": MiddlewareOptions(metrics=True),
        "write_budget_nbytes": MiddlewareOptions(write_budget_nbytes=4),
        "read_budget_nbytes": MiddlewareOptions(read_budget_nbytes=4),
        "retry_attempts": MiddlewareOptions(retry_attempts=2, retry_base_s=1e-6),
        "encryption": MiddlewareOptions(encryption_key_file=key_file),
        "faults": MiddlewareOptions(faults=FaultOptions(error_rate=0.5)),
    }
    store = wrap(store, options[name])
    built: Counting[ObjectWrite] = Counting([ObjectWrite(key, [b"123"]) for key in "abc"])
    asked: Counting[RangeRead] = Counting([RangeRead(key, 0, [bytearray(3)]) for key in "abc"])

    store.write_many(built)
    store.read_many(asked)

    assert built.asked == asked.asked == [0, 1, 2]


class Counting(list[T]):
    """Notes which items are asked for; like a batch that is built lazily, but one that keeps nothing."""

    def __init__(self, items: list[T]) -> None:
        super().__init__(items)
        self.asked: list[int] = []

    def __getitem__(self, index: object) -> T:  # type: ignore[override]
        assert isinstance(index, int)
        self.asked.append(index)
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[T]:
        return (self[index] for index in range(len(self)))
