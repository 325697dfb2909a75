"""The requests of a batch, each built by the thread that carries it out.

A store's I/O threads ask for the i-th request when they are about to perform it. Building it there, not
all of them beforehand, lets the hashing and naming of one object overlap with the I/O of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class LazySequence(Sequence[T], Generic[T]):
    """A sequence whose items are made when they are asked for. Safe to use from several threads."""

    def __init__(self, length: int, make: Callable[[int], T]) -> None:
        self._length = length
        self._make = make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self._make(position) for position in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(f"index {index} of a sequence of {self._length}")
        return self._make(index % self._length)
