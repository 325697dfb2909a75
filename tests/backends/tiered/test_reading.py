from __future__ import annotations

import pytest

from hicache_storage.backends.tiered import TieredOptions, TieredStore
from hicache_storage.errors import CorruptObject, RangeError, StoreUnavailable, Unsupported
from hicache_storage.testing.bodies import poisoned
from hicache_storage.testing.faults import Fault
from hicache_storage.testing.hooks import fetched
from hicache_storage.types import Capabilities, Outcome, RangeRead, Status
from tests.backends.tiered.setup import BODY, KEY, Tier, broken


def store_of(*tiers: Tier) -> TieredStore:
    return TieredStore(TieredOptions(stores=tiers, promote="none"))


def read(store: TieredStore, key: str = KEY) -> Outcome:
    [outcome] = store.read_many([RangeRead(key, 0, [bytearray(len(BODY))], len(BODY))])
    return outcome


def test_an_object_of_the_first_store_is_not_asked_for_below() -> None:
    upper, lower = Tier(), Tier()
    upper.plant()

    assert fetched(store_of(upper, lower), KEY, 3, 5) == BODY[3:8]

    assert lower.calls == []


def test_what_the_first_store_lacks_is_read_below() -> None:
    lower = Tier()
    lower.plant()

    assert fetched(store_of(Tier(), Tier(), lower), KEY, 3, 5) == BODY[3:8]


def test_an_unreachable_store_does_not_hide_those_below() -> None:
    lower = Tier()
    lower.plant()
    store = store_of(broken("read"), lower)

    assert read(store).status is Status.HIT
    assert store.counters["tier_failed.0.StoreUnavailable"] == 1


@pytest.mark.parametrize("unreachable", [0, 1, 2])
def test_a_miss_and_a_failure_are_a_failure(unreachable: int) -> None:
    tiers = [broken("read") if number == unreachable else Tier() for number in range(3)]

    assert isinstance(read(store_of(*tiers)).error, StoreUnavailable)


@pytest.mark.parametrize("unreachable", [0, 1])
def test_stat_and_existence_cannot_be_found_out_while_a_store_is_unreachable(unreachable: int) -> None:
    tiers = [broken("stat") if number == unreachable else Tier() for number in range(2)]
    store = store_of(*tiers)

    [outcome] = store.exists_many([KEY])

    assert isinstance(outcome.error, StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        store.stat(KEY)


def test_a_miss_everywhere_is_a_miss() -> None:
    store = store_of(Tier(), Tier())

    assert (read(store).status, store.stat(KEY), store.exists_many([KEY])[0].status) == (Status.MISS, None, Status.MISS)


def test_an_object_exists_if_any_store_has_it() -> None:
    upper, lower = Tier(), broken("list")
    upper.plant("above")
    lower.plant("below")
    store = store_of(upper, lower)

    assert list(map(bool, store.exists_many(["above", "below", "nowhere"]))) == [True, True, False]
    assert store.stat("below") is not None
    assert lower.count("stat") == 3


def test_each_request_of_a_batch_falls_through_on_its_own() -> None:
    upper, lower = Tier([Fault("read", "raise", key="failing")]), Tier()
    bodies = {key: key.encode() * 9 for key in ("above", "below", "failing", "nowhere")}
    upper.plant("above", bodies["above"])
    for key in ("below", "failing"):
        lower.plant(key, bodies[key])
    targets = {key: poisoned(len(body)) for key, body in bodies.items()}

    outcomes = store_of(upper, lower).read_many([RangeRead(key, 0, [target]) for key, target in targets.items()])

    assert [outcome.status for outcome in outcomes] == [Status.HIT, Status.HIT, Status.HIT, Status.MISS]
    assert [targets[key] for key in ("above", "below", "failing")] == [bodies[k] for k in ("above", "below", "failing")]


def test_a_damaged_copy_does_not_hide_a_good_one_below() -> None:
    upper, lower = Tier(), Tier()
    upper.plant(KEY, BODY[:100])
    lower.plant()
    store = store_of(upper, lower)
    target = bytearray(len(BODY))

    assert store.read_into(KEY, 0, [target], object_nbytes=len(BODY))
    assert target == BODY


@pytest.mark.parametrize(("object_nbytes", "error"), [(len(BODY), CorruptObject), (None, RangeError)])
def test_damage_is_reported_if_no_store_has_a_good_copy(object_nbytes: int | None, error: type[Exception]) -> None:
    upper = Tier()
    upper.plant(KEY, BODY[:100])

    with pytest.raises(error):
        store_of(upper, Tier()).read_into(KEY, 0, [bytearray(len(BODY))], object_nbytes=object_nbytes)


def test_a_store_that_may_hold_a_good_copy_weighs_more_than_a_damaged_one() -> None:
    upper = Tier()
    upper.plant(KEY, BODY[:100])

    assert isinstance(read(store_of(upper, broken("read"))).error, StoreUnavailable)


def test_a_key_that_only_one_store_can_hold_is_no_failure() -> None:
    upper, lower = Tier([Fault("read", "raise", error=Unsupported("too long"))]), Tier()
    store = store_of(upper, lower)

    assert read(store).status is Status.MISS
    assert store.counters.snapshot() == {}


def test_a_range_is_filled_from_its_start_again_below() -> None:
    upper, lower = broken("read"), Tier()
    lower.plant()
    filled: list[int] = []

    store_of(upper, lower).read_many([RangeRead(KEY, 0, [bytearray(8)], on_filled=filled.append)])

    assert filled[:1] == [0]


def test_requests_are_built_once_however_many_stores_are_asked() -> None:
    lower = Tier()
    lower.plant()
    built: list[int] = []

    class Lazy(list[RangeRead]):
        def __getitem__(self, index: object) -> RangeRead:  # type: ignore[override]
            assert isinstance(index, int)
            built.append(index)
            return RangeRead(KEY, 0, [bytearray(1)], len(BODY))

    requests = Lazy([RangeRead("", 0, [])] * 3)

    assert all(store_of(Tier(), Tier(), lower).read_many(requests))
    assert sorted(built) == [0, 1, 2]


def test_a_listing_has_every_object_once_as_the_first_store_knows_it() -> None:
    upper, lower = Tier(), Tier()
    upper.plant("a/both", b"1")
    upper.plant("a/above", b"12")
    lower.plant("a/both", b"123")
    lower.plant("a/below", b"1234")
    lower.plant("b", b"")

    listed = [(info.key, info.nbytes) for info in store_of(upper, lower).list_keys("a/")]

    assert sorted(listed) == [("a/above", 2), ("a/below", 4), ("a/both", 1)]


def test_a_listing_that_is_not_complete_fails() -> None:
    with pytest.raises(StoreUnavailable):
        list(store_of(Tier(), broken("list")).list_keys())


def test_stores_can_together_what_all_or_one_of_them_can() -> None:
    upper, lower = Tier(), Tier()
    upper.capabilities = Capabilities(ranges=False, durable=True, ttl=True, max_key_nbytes=80, max_object_nbytes=9)
    lower.capabilities = Capabilities(durable=False, listing=False, memory_registration=True, max_object_nbytes=90)

    assert store_of(upper, lower).capabilities == Capabilities(
        ranges=False, listing=False, durable=True, ttl=True, memory_registration=True, max_object_nbytes=90
    )
    assert not TieredStore(TieredOptions(stores=[upper, lower], write="first")).capabilities.durable
    with pytest.raises(Unsupported):
        list(store_of(upper, lower).list_keys())
