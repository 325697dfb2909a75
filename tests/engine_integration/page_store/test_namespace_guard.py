"""Nobody uses, and nobody discards from, a namespace that is another model's; and no single operation can raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from hicache_storage import open_store, telemetry
from hicache_storage.engine_integration.page_store import descriptor_key, read_descriptor
from hicache_storage.errors import StoreUnavailable, Unsupported
from hicache_storage.layout import KVShape
from hicache_storage.testing.faults import Fault, FaultyStore
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from hicache_storage.types import ObjectInfo, Outcome
from tests.engine_integration.page_store.coded import Deployment, coded_page, poisoned_pages, views
from tests.engine_integration.page_store.test_faults import GRID, HASHES, ONE_RANK, PAGES, SHAPE

T = TypeVar("T")

WIDER = KVShape.mha(num_layers=6, num_kv_heads=4, head_dim=64, dtype="float32", page_tokens=16)


class Interrupted(MemoryStore):
    """Lets something else happen right before or after one of its operations, once."""

    _step = ""

    def interrupt(self, step: str, event: Callable[[], object], *, before: bool) -> None:
        self._step, self._event, self._before = step, event, before

    def delete(self, key: str) -> bool:
        return self._around("delete", lambda: super(Interrupted, self).delete(key))

    def delete_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self._around("delete_many", lambda: super(Interrupted, self).delete_many(keys))

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._around("list_keys", lambda: super(Interrupted, self).list_keys(prefix))

    def _around(self, step: str, perform: Callable[[], T]) -> T:
        if step != self._step:
            return perform()
        self._step = ""
        if self._before:
            self._event()
        result = perform()
        if not self._before:
            self._event()
        return result


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with open_store("file", {"path": str(tmp_path)}) as store:
        filled = Deployment(store, SHAPE, GRID, ONE_RANK)
        filled.write_all(HASHES)
        yield filled


def test_client_that_looked_before_anybody_wrote_still_sees_a_conflict() -> None:
    store = MemoryStore(MemoryOptions())
    early = Deployment(store, SHAPE, GRID, ONE_RANK)
    client = early.client()
    assert client.lookup_prefix(HASHES) == 0
    other = Deployment(store, WIDER, GRID, ONE_RANK)
    other.write_all(HASHES)

    outcomes = client.read_pages(HASHES, views(poisoned_pages(client.layout, PAGES)))
    written = client.write_pages(HASHES, views(poisoned_pages(client.layout, PAGES)))

    assert all(isinstance(outcome.error, Unsupported) for outcome in [*outcomes, *written])
    assert all(other.read(HASHES)[0])


def test_damaged_description_is_written_anew_and_nothing_is_discarded_meanwhile(deployment: Deployment) -> None:
    key = descriptor_key(deployment.namespace.digest)
    info = deployment.store.stat(key)
    assert info is not None
    deployment.store.delete(key)
    deployment.store.write(key, [b"x" * info.nbytes])

    assert all(deployment.write(HASHES, (0, 0)))

    assert read_descriptor(deployment.store, deployment.namespace.digest) is not None
    assert all(deployment.read(HASHES)[0])


def test_client_that_writes_after_another_ones_clear_leaves_the_description_again(deployment: Deployment) -> None:
    writer = deployment.client()
    pages = views([coded_page(writer.layout, page) for page in range(PAGES)])
    assert all(writer.write_pages(HASHES, pages))

    assert deployment.client().clear() == PAGES * 4
    assert all(writer.write_pages(HASHES, pages))

    assert read_descriptor(deployment.store, deployment.namespace.digest) is not None


@pytest.mark.parametrize("step", ["list_keys", "delete_many", "delete"])
def test_clear_at_any_moment_of_a_write_leaves_no_page_without_a_description(step: str) -> None:
    store = Interrupted(MemoryOptions())
    deployment = Deployment(store, SHAPE, GRID, ONE_RANK)
    deployment.write_all(HASHES)
    writer = deployment.client()
    pages = views([coded_page(writer.layout, page) for page in range(PAGES)])
    assert all(writer.write_pages(HASHES, pages))
    for before in (True, False):
        store.interrupt(step, lambda: writer.write_pages(HASHES, pages), before=before)

        deployment.client().clear()

        keys = {info.key for info in store.list_keys()}
        assert descriptor_key(deployment.namespace.digest) in keys or keys == set()


def test_store_that_cannot_list_is_not_cleared_by_half() -> None:
    class Blind(MemoryStore):
        capabilities = replace(MemoryStore.capabilities, listing=False)

    store = Blind(MemoryOptions())
    deployment = Deployment(store, SHAPE, GRID, ONE_RANK)
    deployment.write_all(HASHES)

    with pytest.raises(Unsupported, match="list"):
        deployment.client().clear()

    assert read_descriptor(store, deployment.namespace.digest) is not None


def test_clear_that_leaves_an_object_behind_raises_and_deletes_the_others() -> None:
    inner = MemoryStore(MemoryOptions())
    Deployment(inner, SHAPE, GRID, ONE_RANK).write_all(HASHES)
    kept = min(info.key for info in inner.list_keys() if info.key.startswith(HASHES[0]))
    failing = FaultyStore(inner, [Fault("delete", "raise", key=kept)])

    with pytest.raises(StoreUnavailable):
        Deployment(failing, SHAPE, GRID, ONE_RANK).client().clear()

    assert [info.key for info in inner.list_keys()] == [kept]


def test_nothing_is_discarded_from_a_namespace_that_became_another_models(deployment: Deployment) -> None:
    reader = deployment.client()
    assert all(reader.read_pages(HASHES, views(poisoned_pages(reader.layout, PAGES))))
    deployment.client().clear()
    other = Deployment(deployment.store, WIDER, GRID, ONE_RANK)
    other.write_all(HASHES)

    outcomes = reader.read_pages(HASHES, views(poisoned_pages(reader.layout, PAGES)))
    again = reader.read_pages(HASHES, views(poisoned_pages(reader.layout, PAGES)))

    assert not any(outcomes)
    assert all(isinstance(outcome.error, Unsupported) for outcome in again)
    assert reader.counters[telemetry.OBJECTS_QUARANTINED] == 0
    assert all(other.read(HASHES)[0])


def test_writer_learns_after_one_call_that_its_namespace_became_another_models(deployment: Deployment) -> None:
    writer = deployment.client()
    pages = views([coded_page(writer.layout, page) for page in range(PAGES)])
    assert all(writer.write_pages(HASHES, pages))
    deployment.client().clear()
    other = Deployment(deployment.store, WIDER, GRID, ONE_RANK)
    other.write_all(HASHES[:1])

    writer.write_pages(HASHES[1:2], pages[1:2])
    outcomes = writer.write_pages(HASHES, pages)

    assert all(isinstance(outcome.error, Unsupported) for outcome in outcomes)
    assert all(other.read(HASHES[:1])[0])


@pytest.mark.parametrize("method", ["stat", "read_into", "write", "quarantine"])
def test_backend_whose_single_operations_raise_anything_costs_misses(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(MemoryOptions())
    deployment = Deployment(store, SHAPE, GRID, ONE_RANK)
    deployment.write_all(HASHES)
    damaged = f"{HASHES[1]}_{deployment.namespace.digest}_L0-3_H0"
    store.delete(damaged)
    store.write(damaged, [b"short"])

    def raising(*_: object, **__: object) -> None:
        raise OSError(5, "I/O error")

    monkeypatch.setattr(store, method, raising)

    assert deployment.client().lookup_prefix(HASHES) in {0, PAGES}
    assert len(deployment.read(HASHES)[0]) == PAGES
    assert len(deployment.write(HASHES, (0, 0))) == PAGES
