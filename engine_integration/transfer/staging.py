"""Two buffers on the device, filled and emptied in turns, so that one moves while the other is filled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from hicache_storage.engine_integration.transfer.streams import Lane, Mark

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory on the device.

    Attributes:
        memory: flat bytes.
        free: behind the last work that reads it; work that fills it again must come after.
    """

    memory: Tensor
    free: Mark = field(default_factory=lambda: Mark(None))

    def rows(self, count: int, row_nbytes: int) -> Tensor:
        """Return its first bytes as ``[count, row_nbytes]``, contiguous."""
        return self.memory[: count * row_nbytes].view(count, row_nbytes)


class Staging:
    """Two buffers, used in turns.

    Args:
        nbytes: of each.
        lane: the lane that fills them; the memory belongs to its stream.
    """

    def __init__(self, nbytes: int, device: torch.device, lane: Lane) -> None:
        with lane.current():
            self._buffers = [Buffer(torch.empty(nbytes, dtype=torch.uint8, device=device)) for _ in range(2)]
        self.nbytes = nbytes
        self._turn = 0

    def take(self) -> Buffer:
        """Return the buffer whose turn it is. For one thread."""
        self._turn = 1 - self._turn
        return self._buffers[self._turn]


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield *items* in pieces of *size*, the last one shorter."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
