"""The requests of a batch, each built by the thread that carries it out.

A store's I/O threads ask for the i-th request when they are about to perform it. Building it there, not
all of them beforehand, lets the hashing and naming of one object overlap with the I/O of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class LazySequence(Sequence[T], Generic[T]):
    """Items that *make* builds in the thread that first asks for them, once each.

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
            return [self[position] for position in range(*index.indices(self._length))]
        position = range(self._length)[index]
        made = self._made.get(position)
        return self._made.setdefault(position, self._make(position)) if made is None else made
