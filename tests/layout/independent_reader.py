"""A second reader, written from docs/layout-spec.md alone: it imports nothing of this project.

A wrong relayout in the library cannot agree with itself here.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import xxhash


def msgpack(value: str | int | bool) -> bytes:
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return struct.pack("B", value) if value < 128 else b"\xcc" + struct.pack("B", value)
    text = value.encode()
    return (struct.pack("B", 0xA0 | len(text)) if len(text) < 32 else b"\xd9" + struct.pack("B", len(text))) + text


def namespace_digest(fields: Mapping[str, str | int | bool]) -> str:
    count = struct.pack("B", 0x80 | len(fields)) if len(fields) < 16 else b"\xde" + struct.pack(">H", len(fields))
    encoded = count + b"".join(msgpack(name) + msgpack(value) for name, value in fields.items())
    return "ukv1-" + hashlib.sha256(encoded).hexdigest()[:16]


def page_hash(tokens: Sequence[int], page_tokens: int, page: int) -> str:
    digest = b""
    for start in range(0, (page + 1) * page_tokens, page_tokens):
        digest = hashlib.sha256(digest + struct.pack(f"<{page_tokens}I", *tokens[start : start + page_tokens])).digest()
    return digest.hex()


def payload_of(key: str, stored: bytes) -> bytes:
    """Return the payload of an object whose every block was checked."""
    magic, version, algorithm, _, block, nbytes, own = struct.unpack("<8sHHIQQQ", stored[-40:])
    assert (magic, version, algorithm) == (b"HICACHE\n", 1, 1)
    seed = xxhash.xxh3_64_intdigest(key.encode())
    assert own == xxhash.xxh3_64_intdigest(stored[nbytes:-8], seed)
    blocks = range(0, nbytes, block)
    checksums = struct.unpack(f"<{len(blocks)}Q", stored[nbytes:-40])
    for start, checksum in zip(blocks, checksums, strict=True):
        assert checksum == xxhash.xxh3_64_intdigest(stored[start : min(start + block, nbytes)], seed)
    return stored[:nbytes]


def mha_chunk(payload: bytes, layers: int, tokens: int, heads: int, dim: int) -> npt.NDArray[np.uint16]:
    """Return ``[layer, K/V, token, head, dim]`` of two-byte elements."""
    return np.frombuffer(payload, "<u2").reshape(layers, 2, tokens, heads, dim)


def mla_chunk(payload: bytes, layers: int, tokens: int, dim: int) -> npt.NDArray[np.uint16]:
    """Return ``[layer, token, dim]`` of two-byte elements."""
    return np.frombuffer(payload, "<u2").reshape(layers, tokens, dim)
