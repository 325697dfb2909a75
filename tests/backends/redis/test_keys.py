from __future__ import annotations

import pytest
from redis.crc import key_slot

from hicache_storage.backends.redis.keys import Keys
from hicache_storage.testing.contract import HOSTILE_KEYS

_KEYS = Keys("p:")


@pytest.mark.parametrize("key", HOSTILE_KEYS, ids=lambda key: ascii(key[:12]))
def test_a_redis_key_gives_back_its_key(key: str) -> None:
    assert _KEYS.name(_KEYS.of(key.encode())) == key


def test_an_ordinary_key_is_readable() -> None:
    assert _KEYS.of(b"abc_ukv1-12_L0-30_H0") == b"p:abc_ukv1-12_L0-30_H0"


@pytest.mark.parametrize("redis_key", [b"", b"p:", b"q:a", b"p:{a}", b"p:%41", b"p:%", b"{p:a}00:0", b"p:\xff"])
def test_what_no_object_has_is_nobodys_key(redis_key: bytes) -> None:
    assert _KEYS.name(redis_key) is None


def test_no_key_has_a_hash_tag_and_chunks_share_the_slot_of_their_object() -> None:
    key = _KEYS.of(b"a{b}c")

    assert b"{" not in key
    assert key_slot(b"{%b}0123:7" % key) == key_slot(key)
