"""Of several copies of an object only the one that was found damaged goes; another serves the next read."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache_storage.backends.file import FileOptions, FileStore
from hicache_storage.backends.tiered import TieredOptions, TieredStore
from hicache_storage.backends.tiered.copies import Copies
from hicache_storage.errors import CorruptObject, StoreUnavailable
from hicache_storage.layout import Grid, KVShape, Topology
from hicache_storage.testing.faults import Fault
from hicache_storage.types import Outcome, RangeRead, Status
from tests.backends.tiered.setup import BODY, KEY, Tier
from tests.engine_integration.page_store.coded import Deployment, coded_page, hashes_of

DEADLINE_S = 60
DAMAGED = bytes(len(BODY))


def read(store: TieredStore, *ranges: range) -> list[Outcome]:
    parts = ranges or [range(len(BODY))]
    return store.read_many([RangeRead(KEY, part.start, [bytearray(len(part))], len(BODY)) for part in parts])


@pytest.mark.parametrize("damaged", [0, 1])
def test_only_the_copy_that_was_read_goes(damaged: int) -> None:
    tiers = [Tier(), Tier(), Tier()]
    for tier in tiers[damaged:]:
        tier.plant()
    with TieredStore(TieredOptions(stores=tiers, promote="none")) as store:
        assert all(read(store))

        assert store.quarantine(KEY)

        assert [tier.has() for tier in tiers[: damaged + 1]] == [None] * (damaged + 1)
        assert all(tier.has() == BODY for tier in tiers[damaged + 1 :])
        assert all(read(store))


def test_a_copy_that_was_promoted_from_the_damaged_one_goes_with_it() -> None:
    tiers = [Tier(), Tier(), Tier()]
    for tier in tiers[1:]:
        tier.plant()
    with TieredStore(TieredOptions(stores=tiers)) as store:
        assert all(read(store))
        assert store.settle(DEADLINE_S)
        assert tiers[0].has() == BODY

        assert store.quarantine(KEY)

        assert [tier.has() for tier in tiers] == [None, None, BODY]


def test_a_store_that_could_not_be_asked_keeps_its_copy() -> None:
    upper, lower = Tier([Fault("read", "raise")]), Tier()
    upper.plant()
    lower.plant(KEY, DAMAGED)
    with TieredStore(TieredOptions(stores=[upper, lower])) as store:
        assert all(read(store))

        assert store.quarantine(KEY)

        assert (upper.has(), lower.has()) == (BODY, None)


def test_a_copy_that_could_not_be_read_goes_and_those_below_were_asked_for_nothing() -> None:
    upper, lower = Tier(), Tier()
    upper.plant(KEY, BODY[:7])
    with TieredStore(TieredOptions(stores=[upper, lower])) as store:
        [outcome] = read(store)
        lower.plant()

        assert isinstance(outcome.error, CorruptObject)
        assert store.quarantine(KEY)

        assert upper.has() is None
        assert all(read(store))


def test_ranges_of_one_batch_that_came_from_several_stores_take_all_of_those_out() -> None:
    tiers = [Tier([Fault("read", "raise", nth=2)]), Tier(), Tier()]
    for tier in tiers:
        tier.plant()
    with TieredStore(TieredOptions(stores=tiers, promote="none")) as store:
        assert all(read(store, range(100), range(100, 200)))

        store.quarantine(KEY)

        assert [tier.has() for tier in tiers] == [None, None, BODY]


def test_two_readers_of_one_damaged_copy_take_one_copy_out() -> None:
    upper, lower = Tier(), Tier()
    upper.plant(KEY, DAMAGED)
    lower.plant()
    with TieredStore(TieredOptions(stores=[upper, lower])) as store:
        assert all(read(store) + read(store))

        assert [store.quarantine(KEY), store.quarantine(KEY)] == [True, False]

        assert lower.has() == BODY


def test_a_quarantine_that_failed_takes_the_same_copy_out_when_it_is_tried_again() -> None:
    upper, lower = Tier([Fault("quarantine", "raise", nth=1)]), Tier()
    upper.plant(KEY, DAMAGED)
    lower.plant()
    with TieredStore(TieredOptions(stores=[upper, lower])) as store:
        assert all(read(store))

        with pytest.raises(StoreUnavailable):
            store.quarantine(KEY)
        assert store.quarantine(KEY)

        assert (upper.has(), lower.has()) == (None, BODY)


def test_a_miss_says_nothing_of_copies() -> None:
    tiers = [Tier(), Tier()]
    with TieredStore(TieredOptions(stores=tiers)) as store:
        read(store)
        for tier in tiers:
            tier.plant()

        assert store.quarantine(KEY)

        assert [tier.has() for tier in tiers] == [None, None]


def test_only_the_latest_reads_are_remembered() -> None:
    copies = Copies(limit=2)

    copies.note({"a": frozenset({0})})
    copies.note({"b": frozenset({0}), "a": frozenset({1})})
    copies.note({"c": frozenset({2})})

    assert [copies.of(key) for key in "abc"] == [frozenset({1}), None, frozenset({2})]


def test_a_page_that_is_damaged_in_the_file_store_is_read_from_the_one_below(tmp_path: Path) -> None:
    shape = KVShape.mha(num_layers=2, num_kv_heads=2, head_dim=32, dtype="float32", page_tokens=16)
    hashes = hashes_of(2, shape.page_tokens)
    upper, lower = FileStore(FileOptions(path=tmp_path)), Tier()
    with TieredStore(TieredOptions(stores=[upper, lower])) as store:
        deployment = Deployment(store, shape, Grid(2, 2), Topology(1, 1))
        deployment.write_all(hashes)
        (damaged,) = (path for path in tmp_path.rglob("*") if path.name.startswith(hashes[1]))
        whole = damaged.read_bytes()
        damaged.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])

        first, _ = deployment.read(hashes)
        second, pages = deployment.read(hashes)
        assert store.settle(DEADLINE_S)

        assert [outcome.status for outcome in first] == [Status.HIT, Status.FAILED]
        assert all(second)
        assert pages == [coded_page(deployment.layouts[0, 0], page) for page in range(2)]
        assert damaged.read_bytes() == whole
