"""Bytes at rest mean nothing without the key, and every change of them is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_storage import open_store
from hicache_storage.errors import ConfigError, CorruptObject, RangeError
from hicache_storage.middleware import EncryptionLayer
from hicache_storage.middleware.segments import SEGMENT_NBYTES, plain_nbytes, stored_nbytes
from hicache_storage.store import ObjectStore
from hicache_storage.testing.contract import StoreContract
from hicache_storage.testing.memory import MemoryStore

SECRET = bytes(range(32))
BODY = os.urandom(3 * SEGMENT_NBYTES + 17)


def raw(store: MemoryStore, key: str) -> bytes:
    info = store.stat(key)
    assert info is not None
    body = bytearray(info.nbytes)
    assert store.read_into(key, 0, [body])
    return bytes(body)


def put_raw(store: MemoryStore, key: str, body: bytes) -> None:
    store.delete(key)
    store.write(key, [body])


class TestEncryptedStore(StoreContract):
    """The laws of a store hold for an encrypted one; what is planted is planted encrypted."""

    shared_between_processes = False
    bounded = False

    @pytest.fixture
    def store(self) -> ObjectStore:
        return EncryptionLayer(MemoryStore(), SECRET)

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        assert isinstance(store, EncryptionLayer)
        assert isinstance(store.inner, MemoryStore)
        sealing = EncryptionLayer(MemoryStore(), SECRET)
        sealing.write(key, [body])
        assert isinstance(sealing.inner, MemoryStore)
        put_raw(store.inner, key, raw(sealing.inner, key))

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        assert isinstance(store, EncryptionLayer)
        info = store.inner.stat(key)
        if info is None:
            return None
        opened = bytearray(plain_nbytes(info.nbytes) or 0)
        assert EncryptionLayer(store.inner, SECRET).read_into(key, 0, [opened])
        return bytes(opened)


@given(st.integers(0, 1 << 40))
def test_plain_size_follows_from_the_stored_one(nbytes: int) -> None:
    assert plain_nbytes(stored_nbytes(nbytes)) == nbytes


@settings(max_examples=50, deadline=None)
@given(st.integers(0, len(BODY)), st.integers(0, len(BODY)))
def test_every_range_decrypts_alone(offset: int, nbytes: int) -> None:
    nbytes = min(nbytes, len(BODY) - offset)
    store = EncryptionLayer(MemoryStore(), SECRET)
    store.write("k", [BODY])
    out = bytearray(nbytes)

    assert store.read_into("k", offset, [out], object_nbytes=len(BODY))
    assert out == BODY[offset : offset + nbytes]


def test_nothing_of_the_plain_bytes_is_at_rest() -> None:
    inner = MemoryStore()
    EncryptionLayer(inner, SECRET).write("k", [b"a secret page " * 100])

    assert b"secret" not in raw(inner, "k")


DAMAGES = {
    "bit": lambda body: body[:50] + bytes([body[50] ^ 1]) + body[51:],
    "cut at a segment": lambda body: body[: SEGMENT_NBYTES + 28],
    "segments swapped": lambda body: (
        body[SEGMENT_NBYTES + 28 : 2 * (SEGMENT_NBYTES + 28)]
        + body[: SEGMENT_NBYTES + 28]
        + body[2 * (SEGMENT_NBYTES + 28) :]
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_changed_object_does_not_decrypt(damage: str) -> None:
    inner = MemoryStore()
    store = EncryptionLayer(inner, SECRET)
    store.write("k", [BODY])
    put_raw(inner, "k", DAMAGES[damage](raw(inner, "k")))

    with pytest.raises(CorruptObject):
        store.read_into("k", 0, [bytearray(100)])


def test_object_under_another_name_does_not_decrypt() -> None:
    inner = MemoryStore()
    store = EncryptionLayer(inner, SECRET)
    store.write("k", [BODY])
    put_raw(inner, "other", raw(inner, "k"))

    with pytest.raises(CorruptObject, match="decrypt"):
        store.read_into("other", 0, [bytearray(100)])


def test_other_key_does_not_decrypt() -> None:
    inner = MemoryStore()
    EncryptionLayer(inner, SECRET).write("k", [BODY])

    with pytest.raises(CorruptObject):
        EncryptionLayer(inner, bytes(32)).read_into("k", 0, [bytearray(100)])


def test_wrong_size_is_found_without_the_plain_size_being_stored() -> None:
    store = EncryptionLayer(MemoryStore(), SECRET)
    store.write("k", [BODY])

    with pytest.raises(CorruptObject):
        store.read_into("k", 0, [bytearray(1)], object_nbytes=len(BODY) - 1)
    with pytest.raises(RangeError):
        store.read_into("k", len(BODY), [bytearray(1)])


@pytest.mark.parametrize("content", ["xyz", "ab", "", "00" * 2000])
def test_key_file_that_is_none_is_refused_without_showing_it(tmp_path: Path, content: str) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(content)

    with pytest.raises(ConfigError) as refusal:
        open_store("memory", {"middleware": {"encryption_key_file": str(key_file)}})

    assert not content or content not in str(refusal.value)
