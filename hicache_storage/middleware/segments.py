"""How large an encrypted object is, and how large the plain one that it holds."""

from __future__ import annotations

SEGMENT_NBYTES = 64 << 10
NONCE_NBYTES = 12
OVERHEAD_NBYTES = NONCE_NBYTES + 16
STORED_SEGMENT_NBYTES = SEGMENT_NBYTES + OVERHEAD_NBYTES


def segment_count(plain_nbytes: int) -> int:
    """Return how many segments an object has; an empty one has one, so that it too is authenticated."""
    return max(1, -(-plain_nbytes // SEGMENT_NBYTES))


def stored_nbytes(plain_nbytes: int) -> int:
    """Return what an object of *plain_nbytes* takes in the inner store."""
    return plain_nbytes + segment_count(plain_nbytes) * OVERHEAD_NBYTES


def plain_nbytes(stored: int) -> int | None:
    """Return the plain size of an object that takes *stored* bytes; None if none does."""
    plain = stored - max(1, -(-stored // STORED_SEGMENT_NBYTES)) * OVERHEAD_NBYTES
    return plain if plain >= 0 and stored_nbytes(plain) == stored else None
