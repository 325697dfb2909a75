"""AES-GCM around any store: bytes at rest mean nothing without the key, and cannot be moved, cut or swapped.

An object is stored as segments of 64 KiB of plain bytes, the last one shorter:

    nonce, 12 bytes | cipher text | tag, 16 bytes

Each segment is authenticated together with the object's key, its place and the object's plain length, so a segment
of another object, another place or a shortened object does not decrypt. A range read fetches and decrypts
the segments that it touches. Nonces are random: at 2**32 segments (256 TiB) under one key, change the key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hicache_storage.batches import LazySequence
from hicache_storage.errors import ConfigError, CorruptObject, RangeError, StoreError
from hicache_storage.middleware.layer import Layer
from hicache_storage.middleware.segments import (
    NONCE_NBYTES,
    OVERHEAD_NBYTES,
    SEGMENT_NBYTES,
    STORED_SEGMENT_NBYTES,
    plain_nbytes,
    segment_count,
    stored_nbytes,
)
from hicache_storage.store import ObjectStore, check_key
from hicache_storage.types import (
    HIT,
    MISS,
    ObjectInfo,
    ObjectWrite,
    Outcome,
    RangeRead,
    ReadableBuffer,
    WritableBuffer,
    WriteResult,
    failed,
    nbytes_of,
)

_KEY_SIZES = (16, 24, 32)


class EncryptionLayer(Layer):
    """Encrypts what is written and decrypts what is read; keys and sizes stay visible.

    Args:
        secret: 16, 24 or 32 bytes.

    Raises:
        ConfigError: the package `cryptography` is missing, or the key has another length.
    """

    def __init__(self, inner: ObjectStore, secret: bytes) -> None:
        super().__init__(inner)
        if len(secret) not in _KEY_SIZES:
            raise ConfigError(f"an AES key has 16, 24 or 32 bytes, this one has {len(secret)}")
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise ConfigError("encryption needs cryptography: pip install 'hicache-storage[encryption]'") from error
        self._cipher = AESGCM(secret)
        self._invalid: type[Exception] = InvalidTag
        limit = inner.capabilities.max_object_nbytes
        if limit is not None:
            limit = max(0, limit - segment_count(limit) * OVERHEAD_NBYTES)
        self.capabilities = replace(inner.capabilities, memory_registration=False, max_object_nbytes=limit)

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        check_key(key, self.capabilities, backend=self.name, op="write")
        return self.inner.write(key, self._encrypted(key, parts))

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        """Write each object encrypted by the thread that writes it."""

        def sealed(index: int) -> ObjectWrite:
            write = writes[index]
            # A key that no store takes cannot be encrypted for; the inner store says so.
            return ObjectWrite(write.key, self._encrypted(write.key, write.parts) if _is_encodable(write.key) else [])

        return self.inner.write_many(LazySequence(len(writes), sealed))

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        (outcome,) = self.read_many([RangeRead(key, offset, targets, object_nbytes)])
        if outcome.error is not None:
            raise outcome.error
        return bool(outcome)

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        outcomes: list[Outcome] = [MISS] * len(reads)
        asked: list[tuple[int, RangeRead, int, bytearray]] = []
        for index in range(len(reads)):
            read = reads[index]
            try:
                plain = self._plain_size(read)
                if plain is None:
                    continue
                start, stop = _segments_of(read, plain, self.name)
            except StoreError as error:
                outcomes[index] = failed(error)
                continue
            end = min(stop * STORED_SEGMENT_NBYTES, stored_nbytes(plain))
            asked.append((index, read, plain, bytearray(end - start * STORED_SEGMENT_NBYTES)))
        inner = [
            RangeRead(r.key, _segments_of(r, p, self.name)[0] * STORED_SEGMENT_NBYTES, [m], stored_nbytes(p))
            for _, r, p, m in asked
        ]
        for (index, read, plain, memory), outcome in zip(asked, self.inner.read_many(inner), strict=True):
            outcomes[index] = self._decrypted(read, plain, memory) if outcome else outcome
        return outcomes

    def stat(self, key: str) -> ObjectInfo | None:
        info = self.inner.stat(key)
        return None if info is None else replace(info, nbytes=self._checked_plain(key, info.nbytes))

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for info in self.inner.list_keys(prefix):
            plain = plain_nbytes(info.nbytes)
            yield replace(info, nbytes=info.nbytes if plain is None else plain)

    def register_memory(self, buffer: WritableBuffer) -> None:
        """Ignored: the inner store only ever sees memory of this layer."""

    def unregister_memory(self, buffer: WritableBuffer) -> None:
        """Ignored, as `register_memory`."""

    def _plain_size(self, read: RangeRead) -> int | None:
        expected = read.object_nbytes
        if expected is not None and 0 <= read.offset <= read.offset + read.nbytes <= expected:
            return expected
        info = self.inner.stat(read.key)
        plain = None if info is None else self._checked_plain(read.key, info.nbytes)
        if None not in (plain, expected) and plain != expected:
            reason = f"the object has {plain} bytes instead of {expected}"
            raise CorruptObject(reason, backend=self.name, op="read", key=read.key)
        return plain

    def _checked_plain(self, key: str, stored: int) -> int:
        plain = plain_nbytes(stored)
        if plain is None:
            raise CorruptObject(f"no encrypted object has {stored} bytes", backend=self.name, op="read", key=key)
        return plain

    def _encrypted(self, key: str, parts: Sequence[ReadableBuffer]) -> list[bytes]:
        plain = memoryview(b"".join(parts)) if len(parts) != 1 else memoryview(parts[0]).cast("B")
        sealed: list[bytes] = []
        for segment in range(segment_count(plain.nbytes)):
            nonce = os.urandom(NONCE_NBYTES)
            body = plain[segment * SEGMENT_NBYTES : (segment + 1) * SEGMENT_NBYTES]
            sealed += (nonce, self._cipher.encrypt(nonce, body, _bound_to(key, segment, plain.nbytes)))
        return sealed

    def _decrypted(self, read: RangeRead, plain: int, memory: bytearray) -> Outcome:
        start, _ = _segments_of(read, plain, self.name)
        view = memoryview(memory)
        opened = bytearray()
        try:
            for place in range(0, len(memory), STORED_SEGMENT_NBYTES):
                sealed = view[place : place + STORED_SEGMENT_NBYTES]
                bound = _bound_to(read.key, start + place // STORED_SEGMENT_NBYTES, plain)
                opened += self._cipher.decrypt(sealed[:NONCE_NBYTES], sealed[NONCE_NBYTES:], bound)
        except self._invalid:
            reason = "does not decrypt: damaged, moved, or written with another key"
            return failed(CorruptObject(reason, backend=self.name, op="read", key=read.key))
        taken = read.offset - start * SEGMENT_NBYTES
        for target in read.targets:
            nbytes = nbytes_of(target)
            memoryview(target).cast("B")[:] = memoryview(opened)[taken : taken + nbytes]
            taken += nbytes
        return HIT


def _is_encodable(key: str) -> bool:
    try:
        key.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _segments_of(read: RangeRead, plain: int, backend: str) -> tuple[int, int]:
    stop = read.offset + read.nbytes
    if not 0 <= read.offset <= stop <= plain:
        reason = f"bytes [{read.offset}, {stop}) of an object of {plain} bytes"
        raise RangeError(reason, backend=backend, op="read", key=read.key)
    first = min(read.offset // SEGMENT_NBYTES, segment_count(plain) - 1)
    return first, max(first + 1, -(-stop // SEGMENT_NBYTES))


def _bound_to(key: str, segment: int, plain: int) -> bytes:
    return b"hicache-aesgcm-v1\0%d\0%d\0" % (segment, plain) + key.encode("utf-8")
