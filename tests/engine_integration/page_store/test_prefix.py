"""F13: what is stored of a prefix is a prefix, and what a store evicts of it is its end."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hicache_storage import open_store, telemetry
from hicache_storage.engine_integration.page_store import PageStore, descriptor_key
from hicache_storage.errors import StoreFull, StoreUnavailable
from hicache_storage.layout import Grid, KVShape, Topology, page_hashes
from hicache_storage.store import ObjectStore
from hicache_storage.testing.faults import Fault, FaultyStore
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from hicache_storage.types import ObjectWrite, Outcome, Status
from tests.engine_integration.page_store.coded import Deployment, coded_page, hashes_of, poisoned_pages, views
from tests.engine_integration.page_store.evicting import EveryMoment, LeastRecentlyUsed

SHAPE = KVShape.mha(num_layers=2, num_kv_heads=2, head_dim=16, dtype="float32", page_tokens=16)
GRID = Grid(1, 1)
ONE_RANK = Topology(1, 1)
PER_PAGE = 4
OBJECT_CHARGE_NBYTES = 4096
PAGES = 128
ROOM = 32
HASHES = hashes_of(PAGES, SHAPE.page_tokens)


def deployment(store: ObjectStore) -> Deployment:
    return Deployment(store, SHAPE, GRID, ONE_RANK)


def write(client: PageStore, hashes: Sequence[str], start: int, stop: int) -> list[Outcome]:
    """Write pages ``[start, stop)`` of *hashes* as the continuation of those in front of them."""
    pages = [coded_page(client.layout, page) for page in range(start, stop)]
    return client.write_pages(hashes[start:stop], views(pages), prefix=hashes[:start])


def read(client: PageStore, hashes: Sequence[str], start: int, stop: int) -> list[Outcome]:
    pages = poisoned_pages(client.layout, stop - start)
    return client.read_pages(hashes[start:stop], views(pages), prefix=hashes[:start])


def whole_pages(keys: set[str], hashes: Sequence[str]) -> list[bool]:
    """Return for each page whether all of its objects are among *keys*, judged by the names alone."""
    counts = dict.fromkeys(hashes, 0)
    for key in keys:
        page_hash = key.partition("_")[0]
        if page_hash in counts:
            counts[page_hash] += 1
    return [counts[page_hash] == PER_PAGE for page_hash in hashes]


def is_prefix(whole: list[bool]) -> bool:
    return whole == sorted(whole, reverse=True)


def keys_in(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list_keys()}


def key_of(client: Deployment, page: int, suffix: str = "L1-2_H0") -> str:
    return f"{HASHES[page]}_{client.namespace.digest}_{suffix}"


NEW_PROCESS = """
import sys
from tests.engine_integration.page_store import test_prefix as law
with law.open_store("file", {"path": sys.argv[1]}) as store:
    client = law.deployment(store).client()
    hits = client.lookup_prefix(law.HASHES)
    outcomes = law.read(client, law.HASHES, 0, hits)
    print(hits, sum(map(bool, outcomes)), law.is_prefix(law.whole_pages(law.keys_in(store), law.HASHES)))
"""


@pytest.mark.parametrize("chunks", [1, 8])
def test_new_process_hits_as_much_of_a_prefix_as_there_is_room_for(tmp_path: Path, chunks: int) -> None:
    capacity_nbytes = (ROOM * PER_PAGE + 1) * OBJECT_CHARGE_NBYTES
    options = {"path": str(tmp_path), "capacity_nbytes": capacity_nbytes, "eviction_ratio": 1.0}
    step = PAGES // chunks
    with open_store("file", options) as store:
        client = deployment(store).client()
        for start in range(0, PAGES, step):
            write(client, HASHES, start, start + step)

    command = [sys.executable, "-c", NEW_PROCESS, str(tmp_path)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()

    assert ROOM - 3 <= int(answer[0]) <= ROOM
    assert answer[1:] == [answer[0], "True"]


@pytest.mark.parametrize("chunks", [1, 8])
def test_new_process_hits_everything_where_there_is_room(tmp_path: Path, chunks: int) -> None:
    step = PAGES // chunks
    with open_store("file", {"path": str(tmp_path)}) as store:
        client = deployment(store).client()
        for start in range(0, PAGES, step):
            assert all(write(client, HASHES, start, start + step))

    command = [sys.executable, "-c", NEW_PROCESS, str(tmp_path)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()

    assert answer == [str(PAGES), str(PAGES), "True"]


def test_what_is_stored_is_a_prefix_after_every_single_write() -> None:
    moments: list[list[bool]] = []
    store = EveryMoment(lambda keys: moments.append(whole_pages(keys, HASHES)))

    assert all(write(deployment(store).client(), HASHES, 0, PAGES))

    assert len(moments) == PAGES * PER_PAGE + 1
    assert all(map(is_prefix, moments))


@pytest.mark.parametrize("failing", [0, 5, 70, PAGES - 1])
def test_what_is_stored_is_a_prefix_after_a_page_failed(failing: int) -> None:
    store = FaultyStore(MemoryStore(MemoryOptions()))
    writer = deployment(store)
    store.rescript([Fault("write", "raise", key=key_of(writer, failing))])

    outcomes = write(writer.client(), HASHES, 0, PAGES)

    wanted = [True] * failing + [False] * (PAGES - failing)
    assert whole_pages(keys_in(store), HASHES) == wanted
    assert [bool(outcome) for outcome in outcomes] == wanted


@pytest.mark.parametrize("failing", [None, 5, 70])
def test_with_threads_only_the_group_under_way_can_be_out_of_order(
    failing: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_pages = 8
    monkeypatch.setattr("hicache_storage.engine_integration.page_store.writing._GROUP_NBYTES", 1)
    monkeypatch.setattr("hicache_storage.engine_integration.page_store.writing._GROUP_OBJECTS", group_pages * PER_PAGE)
    moments: list[list[bool]] = []
    failing_key = "" if failing is None else f"{HASHES[failing]}_"
    store = EveryMoment(
        lambda keys: moments.append(whole_pages(keys, HASHES)),
        threads=4,
        refuses=lambda key: bool(failing_key) and key.startswith(failing_key),
    )

    write(deployment(store).client(), HASHES, 0, PAGES)

    assert moments
    for moment in moments:
        gap = moment.index(False) if False in moment else PAGES
        assert not any(moment[gap - gap % group_pages + group_pages :])
    assert is_prefix(whole_pages(keys_in(store), HASHES))


def test_pages_behind_a_failed_one_say_so_and_are_counted_by_cause() -> None:
    store = FaultyStore(MemoryStore(MemoryOptions()))
    writer = deployment(store)
    client = writer.client()
    store.rescript([Fault("write", "raise", key=key_of(writer, 3))])

    outcomes = write(client, HASHES, 0, 10)

    assert [outcome.status for outcome in outcomes] == [Status.STORED] * 3 + [Status.FAILED] * 7
    assert isinstance(outcomes[3].error, StoreUnavailable)
    assert all("page in front of it" in str(outcome.error) for outcome in outcomes[4:])
    assert all(outcome.error is not None and outcome.error.retryable for outcome in outcomes[4:])
    counts = client.counters.snapshot()
    assert counts["write_failed.StoreUnavailable"] == 1
    assert counts[f"{telemetry.PAGES_NOT_STORED}.StoreUnavailable"] == 6
    assert counts[telemetry.PAGES_FAILED] == 1
    assert counts[telemetry.PAGES_STORED] == 3


def test_what_others_stored_behind_a_gap_stays() -> None:
    store = FaultyStore(MemoryStore(MemoryOptions()))
    writer = deployment(store)
    assert all(write(writer.client(), HASHES, 0, 8))
    store.delete(key_of(writer, 3))
    store.delete(key_of(writer, 5))
    before = keys_in(store)
    store.rescript([Fault("write", "raise", key=key_of(writer, 3))])

    write(writer.client(), HASHES, 0, 8)

    assert keys_in(store) == before


def test_nothing_is_begun_behind_a_group_with_a_failed_page() -> None:
    asked: list[int] = []

    class Down(MemoryStore):
        def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
            asked.append(len(writes))
            raise StoreUnavailable("down", backend=self.name, op="write")

    shape = KVShape.mha(num_layers=2, num_kv_heads=2, head_dim=1024, dtype="float32", page_tokens=16)
    writer = Deployment(Down(MemoryOptions()), shape, GRID, ONE_RANK)
    page = memoryview(bytearray(writer.layouts[0, 0].page_nbytes))

    outcomes = writer.client().write_pages(HASHES, [page] * PAGES)

    assert not any(outcomes)
    assert asked == [128]


def test_failed_undo_is_counted_and_costs_nothing_else() -> None:
    store = FaultyStore(MemoryStore(MemoryOptions()))
    writer = deployment(store)
    client = writer.client()
    store.rescript([Fault("write", "raise", key=key_of(writer, 3)), Fault("delete", "raise")])

    outcomes = write(client, HASHES, 0, 10)

    assert [bool(outcome) for outcome in outcomes] == [True] * 3 + [False] * 7
    left_behind = {key for key in keys_in(store) if key.partition("_")[0] in HASHES[4:]}
    assert left_behind
    assert client.counters["write_failed.StoreUnavailable"] == 1 + len(left_behind)


@pytest.mark.parametrize("lost", [0, 4, 7])
def test_nothing_is_stored_behind_a_prefix_that_is_not_there(lost: int) -> None:
    store = LeastRecentlyUsed(10_000)
    writer = deployment(store)
    client = writer.client()
    assert all(write(client, HASHES, 0, 8))
    store.delete(key_of(writer, lost))

    outcomes = write(client, HASHES, 8, 16)

    assert not any(outcomes)
    assert sum(whole_pages(keys_in(store), HASHES)) == 7


def test_prefix_that_cannot_be_asked_for_stores_nothing_and_is_counted() -> None:
    store = FaultyStore(MemoryStore(MemoryOptions()))
    writer = deployment(store)
    client = writer.client()
    assert all(write(client, HASHES, 0, 8))
    store.rescript([Fault("stat", "raise", key=key_of(writer, 7))])

    outcomes = write(client, HASHES, 8, 16)

    assert not any(outcomes)
    assert client.counters["lookup_failed.StoreUnavailable"] == 1
    assert client.counters[f"{telemetry.PAGES_NOT_STORED}.StoreUnavailable"] == 8


def test_page_that_would_push_out_its_own_prefix_is_not_stored() -> None:
    store = LeastRecentlyUsed(10 * PER_PAGE + 1)

    outcomes = write(deployment(store).client(), HASHES, 0, PAGES)

    stored = sum(map(bool, outcomes))
    assert 8 <= stored <= 10
    assert [bool(outcome) for outcome in outcomes] == [True] * stored + [False] * (PAGES - stored)
    assert whole_pages(keys_in(store), HASHES) == [bool(outcome) for outcome in outcomes]
    error = outcomes[stored].error
    assert error is not None
    assert isinstance(error.__cause__, StoreFull)


@pytest.mark.parametrize("seed", range(8))
def test_what_remains_of_every_prefix_after_any_mixture_is_a_prefix(seed: int) -> None:
    random_numbers = random.Random(seed)
    shared = list(range(10 * 16))
    chains = [page_hashes([*shared, *[1000 + chain] * (20 * 16)], 16) for chain in range(4)]
    store = LeastRecentlyUsed(random_numbers.randrange(12, 60) * PER_PAGE + 1)
    client = deployment(store).client()

    for _ in range(60):
        chain = random_numbers.choice(chains)
        start = random_numbers.randrange(len(chain))
        stop = random_numbers.randrange(start, len(chain)) + 1
        hits = client.lookup_prefix(chain)
        if random_numbers.random() < 0.5:
            read(client, chain, min(start, hits), hits)
        else:
            write(client, chain, min(start, hits), stop if stop > min(start, hits) else len(chain))
        whole = [whole_pages(keys_in(store), each) for each in chains]
        assert all(is_prefix(each) for each in whole)

    assert descriptor_key(deployment(store).namespace.digest) in keys_in(store)


def test_store_without_recency_is_not_asked_to_touch() -> None:
    class Untouchable(MemoryStore):
        asked = 0

        def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
            Untouchable.asked += 1
            return super().exists_many(keys)

    client = deployment(Untouchable(MemoryOptions())).client()

    assert all(write(client, HASHES, 0, 8))
    assert all(read(client, HASHES, 0, 8))

    assert Untouchable.asked == 0


def test_touch_that_fails_is_counted_and_costs_nothing_else() -> None:
    class Untouchable(LeastRecentlyUsed):
        def touch_many(self, keys: Sequence[str]) -> list[Outcome]:
            raise OSError(5, "I/O error")

    client = deployment(Untouchable(10_000)).client()

    assert all(write(client, HASHES, 0, 8))
    assert all(read(client, HASHES, 0, 8))

    assert client.counters["touch_failed.StoreError"] > 0
