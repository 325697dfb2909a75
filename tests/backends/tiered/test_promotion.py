from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest

from hicache_storage.backends.tiered import TieredOptions, TieredStore
from hicache_storage.backends.tiered.copying import Copier
from hicache_storage.errors import StoreFull, StoreUnavailable
from hicache_storage.telemetry import Counters
from hicache_storage.testing.faults import Fault, Gate
from hicache_storage.testing.hooks import at_once
from hicache_storage.types import Outcome, RangeRead, Status
from tests.backends.tiered.setup import BODY, KEY, Tier, broken

DEADLINE_S = 60


def read(store: TieredStore, *keys: str, length: int = len(BODY)) -> list[Outcome]:
    return store.read_many([RangeRead(key, 0, [bytearray(length)], len(BODY)) for key in keys])


def settled(store: TieredStore) -> None:
    assert store.settle(DEADLINE_S)


@pytest.mark.parametrize(
    ("promote", "copied"), [("none", [False, False]), ("first", [True, False]), ("all_above", [True, True])]
)
def test_an_object_is_copied_to_where_the_policy_says(promote: str, copied: list[bool]) -> None:
    tiers = [Tier(), Tier(), Tier()]
    tiers[2].plant()
    with TieredStore(TieredOptions(stores=tiers, promote=promote)) as store:  # type: ignore[arg-type]
        assert all(read(store, KEY))
        settled(store)

        assert [tier.has() == BODY for tier in tiers] == [*copied, True]


def test_a_range_read_promotes_the_whole_object() -> None:
    upper, lower = Tier(), Tier()
    lower.plant()
    with TieredStore(TieredOptions(stores=[upper, lower])) as store:
        assert all(read(store, KEY, length=3))
        settled(store)

        assert upper.has() == BODY
        assert store.counters["copied"] == 1


def test_many_ranges_of_an_object_promote_it_once() -> None:
    gate = Gate()
    upper, lower = Tier([Fault("write", "delay", gate=gate)]), Tier()
    lower.plant()
    with TieredStore(TieredOptions(stores=[upper, lower])) as store:
        assert all(read(store, *[KEY] * 20))
        gate.open()
        settled(store)

    assert upper.count("write") == 1


def test_an_object_of_unknown_size_is_not_promoted() -> None:
    upper, lower = Tier(), Tier()
    lower.plant()
    with TieredStore(TieredOptions(stores=[upper, lower])) as store:
        assert store.read_into(KEY, 0, [bytearray(len(BODY))])
        settled(store)

        assert upper.has() is None


@pytest.mark.parametrize(("limit", "copied"), [(len(BODY) - 1, None), (len(BODY), BODY)])
def test_a_large_object_is_not_promoted(limit: int, copied: bytes | None) -> None:
    upper, lower = Tier(), Tier()
    lower.plant()
    with TieredStore(TieredOptions(stores=[upper, lower], promote_max_nbytes=limit)) as store:
        assert all(read(store, KEY))
        settled(store)

        assert upper.has() == copied


def test_a_damaged_copy_above_is_replaced() -> None:
    upper, lower = Tier(), Tier()
    upper.plant(KEY, BODY[:100])
    lower.plant()
    with TieredStore(TieredOptions(stores=[upper, lower])) as store:
        assert all(read(store, KEY))
        settled(store)

        assert upper.has() == BODY


def test_an_object_that_changed_below_meanwhile_is_not_promoted() -> None:
    gate = Gate()
    # The second read is the promotion's own.
    upper, lower = Tier(), Tier([Fault("read", "delay", nth=2, gate=gate)])
    lower.plant()
    with TieredStore(TieredOptions(stores=[upper, lower])) as store:
        assert all(read(store, KEY))
        lower.plant(KEY, BODY[:7])
        gate.open()
        settled(store)

        assert upper.has() is None
        assert store.counters["copy_failed.CorruptObject"] == 1


def test_a_read_does_not_wait_for_a_promotion() -> None:
    gate = Gate()
    upper, lower = Tier([Fault("write", "delay", gate=gate)]), Tier()
    for key in ("a", "b", "c"):
        lower.plant(key)
    with TieredStore(TieredOptions(stores=[upper, lower], background_threads=1)) as store:
        assert all(read(store, "a"))
        assert gate.entered.wait(DEADLINE_S)
        assert all(read(store, "b", "c", "a"))
        gate.open()
        settled(store)

    assert upper.count("write") == 3


def test_what_the_queue_has_no_room_for_is_not_promoted_and_read_all_the_same() -> None:
    gate = Gate()
    upper, lower = Tier([Fault("write", "delay", gate=gate)]), Tier()
    for number in range(10):
        lower.plant(str(number))
    options = TieredOptions(stores=[upper, lower], background_threads=1, background_jobs=2)
    with TieredStore(options) as store:
        assert all(read(store, "0"))
        assert gate.entered.wait(DEADLINE_S)
        assert all(read(store, *map(str, range(1, 10))))
        gate.open()
        settled(store)

        assert (store.counters["copied"], store.counters["copies_dropped"]) == (3, 7)


@pytest.mark.parametrize("error", [StoreFull("full"), ValueError("a bug")], ids=["full", "bug"])
def test_a_failed_promotion_is_counted_and_harms_nobody(error: Exception) -> None:
    upper, lower = Tier([Fault("write", "raise", key="a", error=error)]), Tier()
    lower.plant("a")
    with TieredStore(TieredOptions(stores=[upper, lower])) as store:
        assert all(read(store, "a"))
        settled(store)

        assert store.counters[f"copy_failed.{type(error).__name__}"] == 1
        assert all(read(store, "a"))


def test_a_store_that_refused_a_promotion_rests() -> None:
    now = [100.0]
    upper, lower = Tier([Fault("write", "raise", nth=1, error=StoreFull("full"))]), Tier()
    lower.plant()
    options = TieredOptions(stores=[upper, lower])
    copier = Copier([upper, lower], options, Counters(), clock=lambda: now[0])

    for now_s, reads in ((100.0, 1), (104.9, 1), (105.0, 2)):
        now[0] = now_s
        copier.promote(KEY, len(BODY), 1, [0])
        assert copier.background.settle(DEADLINE_S)
        assert lower.count("read") == reads

    assert upper.has() == BODY
    copier.background.close(DEADLINE_S)


def test_nothing_is_promoted_to_a_store_that_cannot_be_reached() -> None:
    upper, lower = broken("read"), Tier()
    lower.plant()
    with TieredStore(TieredOptions(stores=[upper, lower])) as store:
        assert all(read(store, KEY))
        settled(store)

    assert upper.count("write") == 0


@pytest.mark.parametrize("op", ["delete", "quarantine"])
def test_a_copy_under_way_does_not_bring_back_what_is_deleted(op: str) -> None:
    gate = Gate()
    upper, lower = Tier([Fault("write", "delay", gate=gate)]), Tier()
    lower.plant()
    with TieredStore(TieredOptions(stores=[upper, lower], drain_s=DEADLINE_S)) as store:
        assert all(read(store, KEY))
        assert gate.entered.wait(DEADLINE_S)

        gone, _ = at_once(partial(getattr(store, op), KEY), gate.open)
        settled(store)

        assert gone
        assert (upper.has(), lower.has()) == (None, None)


def test_a_copy_that_waits_is_given_up_for_a_delete() -> None:
    gate = Gate()
    upper, lower = Tier([Fault("write", "delay", key="first", gate=gate)]), Tier()
    for key in ("first", "waits"):
        lower.plant(key)
    with TieredStore(TieredOptions(stores=[upper, lower], background_threads=1)) as store:
        assert all(read(store, "first", "waits"))
        assert gate.entered.wait(DEADLINE_S)

        assert store.delete("waits")
        gate.open()
        settled(store)

        assert upper.has("waits") is None


def test_a_delete_that_cannot_wait_for_a_copy_fails_alone() -> None:
    gate = Gate()
    upper, lower = Tier([Fault("write", "delay", gate=gate)]), Tier()
    for key in ("copied", "other"):
        lower.plant(key)
    with TieredStore(TieredOptions(stores=[upper, lower], drain_s=0)) as store:
        assert all(read(store, "copied"))
        assert gate.entered.wait(DEADLINE_S)

        outcomes = store.delete_many(["copied", "other"])
        gate.open()
        settled(store)

        assert isinstance(outcomes[0].error, StoreUnavailable)
        assert outcomes[1].status is Status.HIT


_FORKING = f"""
import os
from hicache_storage.backends.tiered import TieredOptions, TieredStore
from hicache_storage.testing.memory import MemoryStore

upper, lower = MemoryStore(), MemoryStore()
store = TieredStore(TieredOptions(stores=[upper, lower]))

def promoted(key):
    lower.write(key, [b"body"])
    store.read_into(key, 0, [bytearray(4)], object_nbytes=4)
    return store.settle({DEADLINE_S}) and upper.stat(key) is not None

assert promoted("before")
child = os.fork()
if child == 0:
    os._exit(0 if promoted("child") else 1)
assert promoted("parent")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_forked_child_copies_with_threads_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", _FORKING], check=True, timeout=DEADLINE_S, env=os.environ)
