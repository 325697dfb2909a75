"""Nobody uses, and nobody discards from, a namespace that is another model's; and no single operation can raise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache_storage import open_store
from hicache_storage.engine_integration.page_store import descriptor_key, read_descriptor
from hicache_storage.errors import Unsupported
from hicache_storage.layout import KVShape
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from tests.engine_integration.page_store.coded import Deployment, poisoned_pages, views
from tests.engine_integration.page_store.test_faults import GRID, HASHES, ONE_RANK, PAGES, SHAPE


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
    wider = KVShape.mha(num_layers=6, num_kv_heads=4, head_dim=64, dtype="float32", page_tokens=16)
    other = Deployment(store, wider, GRID, ONE_RANK)
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
