"""A batch that several stores are asked in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

from hicache_storage.types import ObjectWrite

T = TypeVar("T")


class Remembered(Sequence[T], Generic[T]):
    """Items that *make* builds in the thread that first asks for them, once each: building one may mean hashing an object.

    Safe to use from several threads, if *make* is.
    """

    def __init__(self, length: int, make: Callable[[int], T]) -> None:
        self._length = length
        self._make = make
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        made = self._made.get(position)
        return self._made.setdefault(position, self._make(position)) if made is None else made


def written_again(writes: Sequence[ObjectWrite], indices: Sequence[int]) -> Sequence[ObjectWrite]:
    """Return the writes at *indices* for a store that is not the first: their tails are told of one passage only."""

    def make(position: int) -> ObjectWrite:
        write = writes[indices[position]]
        return write if write.tail is None else ObjectWrite(write.key, write.parts)

    return Remembered(len(indices), make)
