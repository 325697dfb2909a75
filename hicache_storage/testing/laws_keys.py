"""Laws of keys: any non-empty UTF-8 string names an object of its own, and listing gives it back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache_storage.errors import Unsupported
from hicache_storage.store import ObjectStore
from hicache_storage.testing.bodies import body_of
from hicache_storage.testing.hooks import StoreHooks, assert_lists, fetched
from hicache_storage.types import ObjectInfo, ObjectWrite, Outcome, RangeRead, Status

HOSTILE_KEYS = (
    "/", "//", "a", "a/", "a/b", "a//b", "/a", ".", "..", "../x", "a/../b", "./a", ".hidden", ".tmp", "trailing.", "...",
    " ", " a", "a ", "a b", "-", "--help", "~", "$HOME", "a:b", "C:\\x", "a\\b", "a|b", "a&b=c?d#e", "a+b", "'", '"',
    "*", "?", "[ab]", "a*", "^a$", "%", "%41", "A", "%2F", "%00", "Key", "key", "KEY", "con", "null", "0",
    "{a}", "a}", "line\nbreak", "\r", "\t", "\x01", "\x1b[0m", "\x7f", "\x85", "\u2028", "\ufeff", "\ufffd",
    "caf\u00e9", "cafe\u0301", "\u00df", "ss", "\u0130", "\u65e5\u672c\u8a9e", "\U0001f600", "\u202eabc", "\U0010ffff",
    "n" * 255, "n" * 256, "n" * 1000, "p/" * 500, "\u65e5" * 100,
)  # fmt: skip
"""Keys that file names, URLs, patterns, shells, XML or Unicode would like to treat specially, and their neighbours."""

_UNUSABLE_KEYS = ("", "\ud800", "a\udfffb")

_CALLS: dict[str, Callable[[ObjectStore, str], object]] = {
    "write": lambda store, key: store.write(key, [b"x"]),
    "read": lambda store, key: store.read_into(key, 0, [bytearray(1)]),
    "stat": lambda store, key: store.stat(key),
    "delete": lambda store, key: store.delete(key),
    "quarantine": lambda store, key: store.quarantine(key),
}

_BATCHES: dict[str, Callable[[ObjectStore, str], list[Outcome]]] = {
    "read_many": lambda store, key: store.read_many([RangeRead(key, 0, [bytearray(1)])]),
    "write_many": lambda store, key: store.write_many([ObjectWrite(key, [b"x"])]),
    "exists_many": lambda store, key: store.exists_many([key]),
    "delete_many": lambda store, key: store.delete_many([key]),
    "touch_many": lambda store, key: store.touch_many([key]),
}


class KeyLaws(StoreHooks):
    """A store must not let what its keys are made of mean anything."""

    @pytest.mark.parametrize("key", HOSTILE_KEYS, ids=lambda key: ascii(key[:12]))
    def test_a_key_is_only_a_name(self, store: ObjectStore, key: str) -> None:
        if _too_long(store, key):
            with pytest.raises(Unsupported):
                store.write(key, [b"0123"])
            return

        store.write(key, [b"0123"])

        assert self.observe(store, key) == b"0123"
        assert fetched(store, key, 1, 2) == b"12"
        assert_lists(store, key, [key])
        assert store.delete(key)
        assert self.observe(store, key) is None

    def test_keys_never_collide(self, store: ObjectStore) -> None:
        keys = [key for key in HOSTILE_KEYS if not _too_long(store, key)]
        bodies = {key: body_of(key, 40 + i) for i, key in enumerate(keys)}
        for key, body in bodies.items():
            store.write(key, [body])
        assert_lists(store, "", keys)

        for key in keys[::2]:
            assert store.delete(key)

        assert [self.observe(store, key) for key in keys[::2]] == [None] * len(keys[::2])
        assert [self.observe(store, key) for key in keys[1::2]] == [bodies[key] for key in keys[1::2]]
        assert_lists(store, "", keys[1::2])

    @pytest.mark.parametrize("call", _CALLS)
    @pytest.mark.parametrize("key", _UNUSABLE_KEYS, ids=ascii)
    def test_what_is_no_key_is_refused(self, store: ObjectStore, key: str, call: str) -> None:
        with pytest.raises(Unsupported):
            _CALLS[call](store, key)

    @pytest.mark.parametrize("call", _BATCHES)
    @pytest.mark.parametrize("key", _UNUSABLE_KEYS, ids=ascii)
    def test_what_is_no_key_fails_its_request(self, store: ObjectStore, key: str, call: str) -> None:
        [outcome] = _BATCHES[call](store, key)

        assert outcome.status is Status.FAILED
        assert isinstance(outcome.error, Unsupported)

    @pytest.mark.parametrize("call", _CALLS)
    def test_the_key_limit_is_the_declared_one(self, store: ObjectStore, call: str) -> None:
        limit = store.capabilities.max_key_nbytes
        longest = "k" * (4096 if limit is None else limit)

        _CALLS[call](store, longest)

        if limit is not None:
            with pytest.raises(Unsupported):
                _CALLS[call](store, longest + "k")

    @pytest.mark.parametrize(
        ("prefix", "keys"),
        [
            ("", ["ab", "ab/1", "abc", "a*", "b", "ba", "AB"]),
            ("a", ["ab", "ab/1", "abc", "a*"]),
            ("ab", ["ab", "ab/1", "abc"]),
            ("ab/", ["ab/1"]),
            ("a*", ["a*"]),
            ("a.", []),
            ("[a]", []),
            ("c", []),
            ("abcd", []),
        ],
    )
    def test_a_prefix_is_a_string_and_not_a_pattern(self, store: ObjectStore, prefix: str, keys: list[str]) -> None:
        for key in ["ab", "ab/1", "abc", "a*", "b", "ba", "AB"]:
            self.plant(store, key, b"x")

        assert_lists(store, prefix, keys)

    @pytest.mark.parametrize("prefix", ["*", "?", "[", "\\", "a\\", "^", "%", "_", "{", "../", "/", ".", "\u65e5"])
    def test_a_prefix_may_hold_any_character(self, store: ObjectStore, prefix: str) -> None:
        for key in [prefix, prefix + "b", "x" + prefix, "ab"]:
            self.plant(store, key, b"x")

        assert_lists(store, prefix, [prefix, prefix + "b"])

    def test_an_empty_store_lists_nothing(self, store: ObjectStore) -> None:
        assert_lists(store, "", [])

    def test_a_long_listing_is_complete(self, store: ObjectStore) -> None:
        # More than the 1,000 keys that servers like to give in one answer.
        keys = [f"long-{i}" for i in range(1100)]
        assert all(store.write_many([ObjectWrite(key, [b"x"]) for key in keys]))

        assert_lists(store, "long-", keys)

    def test_listing_gives_sizes(self, store: ObjectStore) -> None:
        sizes = {"none": 0, "one": 1, "many": 4097}
        for key, nbytes in sizes.items():
            self.plant(store, key, body_of(key, nbytes))

        if not store.capabilities.listing:
            assert_lists(store, "", [])
        else:
            assert {info.key: info.nbytes for info in store.list_keys()} == sizes

    def test_what_stays_is_listed_once_while_other_keys_change(self, store: ObjectStore) -> None:
        for i in range(50):
            self.plant(store, f"stays-{i}", b"x")
            self.plant(store, f"goes-{i}", b"x")
        if not store.capabilities.listing:
            assert_lists(store, "", [])
            return

        seen: list[ObjectInfo] = []
        for info in store.list_keys():
            if len(seen) < 50:
                store.delete(f"goes-{len(seen)}")
                store.write(f"comes-{len(seen)}", [b"x"])
            seen.append(info)

        stayed = [info.key for info in seen if info.key.startswith("stays-")]
        assert sorted(stayed) == sorted(f"stays-{i}" for i in range(50))

    def test_a_listing_may_be_left_early(self, store: ObjectStore) -> None:
        self.plant(store, "a", b"x")
        self.plant(store, "b", b"x")
        if not store.capabilities.listing:
            assert_lists(store, "", [])
            return

        first = next(store.list_keys())

        assert first.key in {"a", "b"}
        assert_lists(store, "", ["a", "b"])


def _too_long(store: ObjectStore, key: str) -> bool:
    limit = store.capabilities.max_key_nbytes
    return limit is not None and len(key.encode()) > limit
