"""Bytes for tests: bodies that are different wherever they should be, and targets that look like none of them."""

from __future__ import annotations

import hashlib

_POISON = 0xA5


def body_of(seed: str, nbytes: int) -> bytes:
    """Return *nbytes* that look random, always the same for one *seed*."""
    return hashlib.shake_128(seed.encode("utf-8", "surrogatepass")).digest(nbytes)


def poisoned(nbytes: int) -> bytearray:
    """Return a target that no object fills by chance."""
    return bytearray([_POISON]) * nbytes
