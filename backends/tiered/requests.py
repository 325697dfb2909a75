"""A batch that several stores are asked in turn."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_storage.batches import LazySequence
from hicache_storage.types import ObjectWrite


def written_again(writes: Sequence[ObjectWrite], indices: Sequence[int]) -> Sequence[ObjectWrite]:
    """Return the writes at *indices* for a store that is not the first: their tails are told of one passage only."""

    def make(position: int) -> ObjectWrite:
        write = writes[indices[position]]
        return write if write.tail is None else ObjectWrite(write.key, write.parts)

    return LazySequence(len(indices), make)
