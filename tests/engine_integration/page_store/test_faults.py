"""F2, F7: anything odd is a miss for its page, never wrong bytes, and the next write heals it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hicache_storage import open_store, telemetry
from hicache_storage.engine_integration.page_store import PageStore, descriptor_key
from hicache_storage.errors import AccessDenied, CorruptObject, StoreError, StoreUnavailable, Unsupported
from hicache_storage.layout import Grid, KVShape, Namespace, ShardLayout, Topology, Variant, plan_reads
from hicache_storage.store import ObjectStore
from hicache_storage.testing.faults import Fault, FaultyStore
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from hicache_storage.types import MISS, ObjectWrite, Outcome, RangeRead, Status
from tests.engine_integration.page_store.coded import (
    POISON,
    Deployment,
    coded_page,
    hashes_of,
    poisoned_pages,
    views,
)

SHAPE = KVShape.mha(num_layers=6, num_kv_heads=4, head_dim=32, dtype="float32", page_tokens=16)
GRID = Grid(3, 2)
ONE_RANK = Topology(1, 1)
PAGES = 6
HASHES = hashes_of(PAGES, SHAPE.page_tokens)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with open_store("file", {"path": str(tmp_path)}) as opened:
        yield opened


@pytest.fixture
def deployment(store: ObjectStore) -> Deployment:
    filled = Deployment(store, SHAPE, GRID, ONE_RANK)
    filled.write_all(HASHES)
    return filled


def path_of(root: Path, key: str) -> Path:
    (path,) = (path for path in root.rglob("*") if path.name == key)
    return path


def damage_length(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return damage


def flip(position: int) -> Callable[[bytes], bytes]:
    def flipped(body: bytes) -> bytes:
        damaged = bytearray(body)
        damaged[position] ^= 0x10
        return bytes(damaged)

    return flipped


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = {
    "empty": damage_length(lambda body: b""),
    "half": damage_length(lambda body: body[: len(body) // 2]),
    "one-short": damage_length(lambda body: body[:-1]),
    "one-long": damage_length(lambda body: body + b"\0"),
    "bit-in-payload": damage_length(flip(100)),
    "bit-in-last-block": damage_length(flip(-200)),
    "bit-in-checksums": damage_length(flip(-41)),
    "bit-in-footer": damage_length(flip(-20)),
    "folder": replace_by_folder,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_object_is_a_miss_for_its_page_and_the_next_write_heals_it(
    tmp_path: Path, deployment: Deployment, damage: Callable[[Path], None]
) -> None:
    key = f"{HASHES[3]}_{deployment.namespace.digest}_L3-6_H1"
    damage(path_of(tmp_path, key))

    outcomes, pages = deployment.read(HASHES)
    assert [bool(outcome) for outcome in outcomes] == [True, True, True, False, True, True]
    assert all(page == coded_page(deployment.layouts[0, 0], i) for i, page in enumerate(pages) if i != 3)

    deployment.write_all(HASHES[:4])
    outcomes, pages = deployment.read(HASHES)
    assert all(outcomes)
    assert pages == [coded_page(deployment.layouts[0, 0], page) for page in range(PAGES)]


READ_ERRORS = [
    OSError(5, "I/O error"),
    AccessDenied("not yours", backend="file", op="read"),
    CorruptObject("unreadable", backend="file", op="read"),
    StoreUnavailable("late", backend="file", op="read"),
    ValueError("bug"),
]


@pytest.mark.parametrize("error", READ_ERRORS, ids=lambda error: type(error).__name__)
def test_object_that_cannot_be_read_costs_its_page_once(deployment: Deployment, error: Exception) -> None:
    faulty = FaultyStore(deployment.store)
    reader = Deployment(faulty, SHAPE, GRID, ONE_RANK)
    client = reader.client()
    assert client.lookup_prefix(HASHES) == PAGES
    key = f"{HASHES[3]}_{deployment.namespace.digest}_L3-6_H1"
    # A batch that raises what no store may raise fails in whole; alone, a StoreError fails its own request.
    own_error = isinstance(error, StoreError)
    faulty.rescript([Fault("read", "raise", nth=1, key=key, error=error)])

    outcomes = client.read_pages(HASHES, views(poisoned_pages(client.layout, PAGES)))

    assert [bool(outcome) for outcome in outcomes] == [own_error] * 3 + [False] + [own_error] * 2
    assert all(reader.write(HASHES, (0, 0)))
    assert client.lookup_prefix(HASHES) == PAGES
    outcomes, pages = reader.read(HASHES)
    assert all(outcomes)
    assert pages == [coded_page(reader.layouts[0, 0], page) for page in range(PAGES)]


@pytest.mark.parametrize("damage", ["half", "bit-in-payload", "one-long"])
def test_damage_is_counted_by_cause_and_logged_once(
    tmp_path: Path, deployment: Deployment, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    for page in (1, 3):
        DAMAGES[damage](path_of(tmp_path, f"{HASHES[page]}_{deployment.namespace.digest}_L0-3_H0"))
    client = deployment.client()

    with caplog.at_level(logging.WARNING):
        client.read_pages(HASHES, views(poisoned_pages(client.layout, PAGES)))

    counts = client.counters.snapshot()
    assert sum(count for name, count in counts.items() if name.startswith("read_failed.")) == 2
    assert counts[telemetry.OBJECTS_QUARANTINED] == 2
    assert counts[telemetry.PAGES_HIT] == 4
    assert sum("object.corrupt" in record.message for record in caplog.records) == 1


def test_object_copied_under_another_name_is_a_miss(tmp_path: Path, deployment: Deployment) -> None:
    digest = deployment.namespace.digest
    stolen = path_of(tmp_path, f"{HASHES[0]}_{digest}_L0-3_H0").read_bytes()
    path_of(tmp_path, f"{HASHES[1]}_{digest}_L0-3_H0").write_bytes(stolen)

    outcomes, _ = deployment.read(HASHES)

    assert [bool(outcome) for outcome in outcomes] == [True, False, True, True, True, True]
    assert isinstance(outcomes[1].error, CorruptObject)


def test_damage_outside_the_range_a_reader_needs_is_not_its_miss(tmp_path: Path, deployment: Deployment) -> None:
    key = f"{HASHES[0]}_{deployment.namespace.digest}_L0-3_H0"
    damage_length(flip(0))(path_of(tmp_path, key))
    reader = Deployment(deployment.store, SHAPE, GRID, Topology(1, 6))

    assert [all(reader.read(HASHES, (0, stage))[0]) for stage in (1, 2, 3, 4, 5)] == [True] * 5
    assert not all(reader.read(HASHES, (0, 0))[0])


def test_missing_object_ends_the_prefix_at_its_page(deployment: Deployment) -> None:
    deployment.store.delete(f"{HASHES[4]}_{deployment.namespace.digest}_L3-6_H1")

    assert deployment.client().lookup_prefix(HASHES) == 4


def test_object_that_vanishes_after_the_lookup_ends_the_prefix_at_the_read(deployment: Deployment) -> None:
    client = deployment.client()
    assert client.lookup_prefix(HASHES) == PAGES
    deployment.store.delete(f"{HASHES[4]}_{deployment.namespace.digest}_L0-3_H1")

    outcomes, _ = deployment.read(HASHES)

    assert [outcome.status for outcome in outcomes] == [Status.HIT] * 4 + [Status.MISS, Status.HIT]


def test_prefix_needs_every_object_of_its_pages() -> None:
    store = MemoryStore(MemoryOptions())
    deployment = Deployment(store, SHAPE, GRID, Topology(2, 2))
    for rank in ((0, 0), (1, 0), (0, 1)):
        deployment.write(HASHES, rank)
    whole = Deployment(store, SHAPE, GRID, ONE_RANK)

    assert whole.client().lookup_prefix(HASHES) == 0
    assert deployment.client((0, 0)).lookup_prefix(HASHES) == PAGES


OTHER_NAMESPACES: list[Callable[[Namespace], Namespace]] = [
    lambda namespace: replace(namespace, model_id="coded-2"),
    lambda namespace: replace(namespace, model_id="cod/ed"),
    lambda namespace: replace(namespace, variant=Variant(weights_revision="r2")),
    lambda namespace: replace(namespace, variant=Variant(component="draft")),
]


@pytest.mark.parametrize("change", OTHER_NAMESPACES, ids=["model", "separator", "revision", "component"])
def test_other_namespace_misses_and_leaves_the_buffer_alone(
    deployment: Deployment, change: Callable[[Namespace], Namespace]
) -> None:
    other = change(deployment.namespace)
    client = PageStore(deployment.store, other, deployment.layouts[0, 0])
    pages = poisoned_pages(client.layout, PAGES)

    assert client.lookup_prefix(HASHES) == 0
    assert not any(client.read_pages(HASHES, views(pages)))
    assert all(set(page) == {POISON} for page in pages)


SAME_SIZES = [
    ("bfloat16", 16, Grid(3, 2)),
    ("float16", 16, Grid(3, 2)),
    ("float8_e4m3fn", 32, Grid(3, 2)),
    ("float8_e5m2", 32, Grid(3, 2)),
    ("uint8", 32, Grid(3, 2)),
    ("bfloat16", 32, Grid(3, 1)),
    ("bfloat16", 64, Grid(3, 1)),
    ("bfloat16", 32, Grid(3, 2)),
    ("bfloat16", 8, Grid(6, 2)),
]


@pytest.mark.parametrize("written", SAME_SIZES, ids=str)
def test_pages_of_equal_size_and_other_meaning_are_never_read(written: tuple[str, int, Grid]) -> None:
    store = MemoryStore(MemoryOptions())
    clients = {}
    for dtype, page_tokens, grid in SAME_SIZES:
        shape = KVShape.mha(num_layers=6, num_kv_heads=4, head_dim=32, dtype=dtype, page_tokens=page_tokens)
        layout = ShardLayout(shape, grid, ONE_RANK.shard(shape, tp_rank=0, pp_rank=0))
        clients[dtype, page_tokens, grid] = PageStore(store, Namespace.of(model_id="m", shape=shape, grid=grid), layout)
    writer = clients.pop(written)
    assert all(writer.write_pages(HASHES[:1], [memoryview(bytes(writer.layout.page_nbytes))]))

    for client in clients.values():
        assert client.lookup_prefix(HASHES[:1]) == 0
        pages = poisoned_pages(client.layout, 1)
        assert client.read_pages(HASHES[:1], views(pages)) == [MISS]
        assert set(pages[0]) == {POISON}
    assert writer.lookup_prefix(HASHES[:1]) == 1


def test_other_geometry_under_the_same_name_is_turned_away_and_breaks_nothing(deployment: Deployment) -> None:
    wider = KVShape.mha(num_layers=6, num_kv_heads=4, head_dim=64, dtype="float32", page_tokens=16)
    intruder = Deployment(deployment.store, wider, GRID, ONE_RANK)

    outcomes, _ = intruder.read(HASHES)
    assert all(isinstance(outcome.error, Unsupported) for outcome in outcomes)
    assert "head_dim 64 here, 32 there" in str(outcomes[0].error)
    assert not any(intruder.write(HASHES, (0, 0)))
    assert intruder.client().lookup_prefix(HASHES) == 0

    assert all(deployment.read(HASHES)[0])


class Broken(MemoryStore):
    """A backend with bugs: whatever it is asked, it raises."""

    def __init__(self, error: Exception) -> None:
        super().__init__(MemoryOptions())
        self._error = error

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        raise self._error

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        raise self._error

    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [OSError(5, "I/O error"), TimeoutError(), ValueError("bug"), StoreUnavailable("down"), KeyError("bug")],
    ids=repr,
)
def test_backend_that_raises_costs_misses_and_nothing_else(error: Exception) -> None:
    deployment = Deployment(Broken(error), SHAPE, GRID, ONE_RANK)
    client = deployment.client()

    reads, _ = deployment.read(HASHES)
    writes = deployment.write(HASHES, (0, 0))

    assert client.lookup_prefix(HASHES) == 0
    assert [outcome.status for outcome in reads + writes] == [Status.FAILED] * 12
    assert all(isinstance(outcome.error, StoreError) for outcome in reads + writes)


class Forgetful(MemoryStore):
    """A backend that answers fewer requests than it was asked."""

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        return []


def test_backend_that_loses_answers_costs_misses() -> None:
    deployment = Deployment(Forgetful(MemoryOptions()), SHAPE, GRID, ONE_RANK)
    deployment.write_all(HASHES)

    outcomes, _ = deployment.read(HASHES)

    assert "0 outcomes for 24 requests" in str(outcomes[0].error)


class Absent(MemoryStore):
    """A store that is down for `stat`, so that nobody can find out whose namespace it is."""

    def stat(self, key: str) -> None:
        raise StoreUnavailable("down", backend="memory", op="stat", key=key)


def test_nothing_is_discarded_while_the_namespace_is_unconfirmed() -> None:
    store = Absent(MemoryOptions())
    deployment = Deployment(store, SHAPE, GRID, ONE_RANK)
    key = f"{HASHES[0]}_{deployment.namespace.digest}_L0-3_H0"
    store.write(key, [b"short"])

    outcomes, _ = deployment.read(HASHES[:1])

    assert not outcomes[0]
    assert key in {info.key for info in store.list_keys()}


def test_clear_removes_one_namespace_and_nothing_else(deployment: Deployment) -> None:
    other = Deployment(deployment.store, SHAPE, GRID, ONE_RANK, model_id="other")
    other.write_all(HASHES)
    deployment.store.write("somebody else's", [b"data"])

    removed = deployment.client().clear()

    assert removed == PAGES * 4
    assert deployment.client().lookup_prefix(HASHES) == 0
    assert all(other.read(HASHES)[0])
    assert deployment.store.stat("somebody else's") is not None
    assert deployment.store.stat(descriptor_key(deployment.namespace.digest)) is None


def test_second_write_finds_everything_there(deployment: Deployment) -> None:
    assert [outcome.status for outcome in deployment.write(HASHES, (0, 0))] == [Status.ALREADY_THERE] * PAGES


def test_page_is_stored_if_one_of_its_objects_was_not_there(deployment: Deployment) -> None:
    deployment.store.delete(f"{HASHES[2]}_{deployment.namespace.digest}_L0-3_H1")

    outcomes = deployment.write(HASHES, (0, 0))

    assert [o.status for o in outcomes].index(Status.STORED) == 2
    assert sum(outcome.status is Status.STORED for outcome in outcomes) == 1


def test_whole_objects_take_one_request_each(deployment: Deployment) -> None:
    requests: list[RangeRead] = []

    class Recording(MemoryStore):
        def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
            requests.extend(reads)
            return super().read_many(requests)

    store = Recording(MemoryOptions())
    recorded = Deployment(store, SHAPE, GRID, ONE_RANK)
    recorded.write_all(HASHES)

    assert all(recorded.read(HASHES)[0])
    assert len(requests) == PAGES * 4
    assert {request.nbytes for request in requests} == {
        plan.object_nbytes for plan in plan_reads(recorded.layouts[0, 0])
    }
