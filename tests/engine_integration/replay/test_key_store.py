"""The L3 without bytes: names, a capacity, and what goes first."""

from __future__ import annotations

from hicache_storage.engine_integration.replay.key_store import KeyClient, KeyStore
from hicache_storage.telemetry import Counters
from hicache_storage.types import Status


def client(store: KeyStore, scope: str = "") -> KeyClient:
    return KeyClient(store, Counters(), scope=scope, read_nbytes=20, stored_nbytes=10, after_read=lambda pages: None)


def pages(count: int) -> list[memoryview]:
    return [memoryview(b"")] * count


def statuses(client: KeyClient, names: str) -> list[Status]:
    return [outcome.status for outcome in client.write_pages(list(names), pages(len(names)))]


def test_what_was_written_is_found_up_to_the_first_gap() -> None:
    mine = client(KeyStore())
    mine.write_pages(list("abd"), pages(3))

    assert mine.lookup_prefix(list("abcd")) == 2
    assert [outcome.status for outcome in mine.read_pages(list("abcd"), pages(4))] == [
        Status.HIT,
        Status.HIT,
        Status.MISS,
        Status.MISS,
    ]


def test_pages_and_bytes_are_counted_once() -> None:
    mine = client(KeyStore())

    assert statuses(mine, "ab") == [Status.STORED, Status.STORED]
    assert statuses(mine, "abc") == [Status.ALREADY_THERE, Status.ALREADY_THERE, Status.STORED]
    mine.read_pages(list("abx"), pages(3))
    assert mine.counters.snapshot() == {
        "pages_stored": 3,
        "pages_already_there": 2,
        "nbytes_stored": 30,
        "pages_hit": 2,
        "pages_missed": 1,
        "nbytes_read": 40,
    }


def test_clients_of_one_scope_share_and_of_two_do_not() -> None:
    store = KeyStore()
    client(store).write_pages(list("ab"), pages(2))

    assert client(store).lookup_prefix(list("ab")) == 2
    assert client(store, "_tp2pp1").lookup_prefix(list("ab")) == 0


def test_a_full_store_evicts_the_prefix_that_was_used_longest_ago_from_its_end() -> None:
    store = KeyStore(6)
    mine = client(store)
    mine.write_pages(list("abc"), pages(3))
    mine.write_pages(list("xyz"), pages(3))
    mine.read_pages(list("abc"), pages(3))

    mine.write_pages(list("n"), pages(1))

    assert mine.lookup_prefix(list("xyz")) == 2
    assert mine.lookup_prefix(list("abc")) == 3
    assert (len(store), store.num_evicted) == (6, 1)


def test_looking_is_no_use() -> None:
    store = KeyStore(2)
    mine = client(store)
    mine.write_pages(list("a"), pages(1))
    mine.write_pages(list("b"), pages(1))
    mine.lookup_prefix(list("a"))

    mine.write_pages(list("c"), pages(1))

    assert mine.lookup_prefix(list("a")) == 0


def test_more_pages_than_a_store_holds_are_kept_as_far_as_they_fit() -> None:
    mine = client(KeyStore(2))

    assert statuses(mine, "abc") == [Status.STORED, Status.STORED, Status.MISS]
    assert mine.lookup_prefix(list("abc")) == 2
