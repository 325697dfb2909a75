"""How the parts of a store are called in what the layers `metrics` around them count."""

from __future__ import annotations

from hicache_storage.backends.tiered import TieredOptions, TieredStore
from hicache_storage.middleware import MetricsLayer, RetryLayer, store_counts
from hicache_storage.store import ObjectStore
from hicache_storage.testing.memory import MemoryStore


def tiered(*parts: ObjectStore) -> TieredStore:
    return TieredStore(TieredOptions(stores=parts))


def looked_at(*parts: ObjectStore) -> dict[str, int]:
    """Return by part how often a store of *parts* looked for an object that is nowhere."""
    with tiered(*parts) as store:
        store.exists_many(["absent"])
        counts = store_counts(store)
    begin, end = "store_metrics.part.", ".requests.exists.miss."
    return {
        name.removeprefix(begin).partition(end)[0]: count
        for name, count in counts.items()
        if name.startswith(begin) and end in name
    }


def counted() -> ObjectStore:
    return MetricsLayer(MemoryStore())


def test_parts_are_called_by_their_numbers() -> None:
    assert looked_at(counted(), MemoryStore(), counted()) == {"0": 1, "2": 1}


def test_parts_of_a_part_are_called_by_both_numbers() -> None:
    inner = MetricsLayer(RetryLayer(tiered(counted(), counted()), attempts=2))

    assert looked_at(counted(), inner) == {"0": 1, "1": 1, "1/0": 1, "1/1": 1}


def test_parts_that_are_too_deep_or_too_many_share_a_name() -> None:
    deep = tiered(tiered(counted(), tiered(counted())), counted())
    many = [counted() for _ in range(17)]

    assert looked_at(deep, *many) == {"0/1": 1, "others": 4} | {f"{at}": 1 for at in range(1, 16)}


def test_without_the_layer_nothing_is_counted() -> None:
    with RetryLayer(tiered(MemoryStore()), attempts=2) as store:
        store.exists_many(["absent"])

        assert store_counts(store) == {}


def test_of_two_layers_around_one_store_the_outer_counts() -> None:
    store = MetricsLayer(MetricsLayer(MemoryStore()))

    store.exists_many(["absent"])

    assert store_counts(store) == store.metrics.counts()
