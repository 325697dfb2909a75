"""Ranks as processes over torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import distributed

from hicache_storage.errors import RankFailure


class TorchGroup:
    """A process group of CPU tensors, gloo as a rule. Its deadline is the process group's own timeout.

    Args:
        process_group: None is the default group. Threads that agree on different things need
            process groups of their own.
    """

    def __init__(self, process_group: distributed.ProcessGroup | None = None) -> None:
        self._group = process_group
        self._rank = distributed.get_rank(process_group)
        self._size = distributed.get_world_size(process_group)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def all_gather(self, step: str, values: Sequence[int]) -> list[list[int]]:
        mine = torch.tensor(values, dtype=torch.int64)
        everyone = [torch.empty_like(mine) for _ in range(self._size)]
        try:
            distributed.all_gather(everyone, mine, group=self._group)
        except (RuntimeError, ValueError) as error:
            # Gloo tells that a peer is gone or late, not which one.
            raise RankFailure(step, {self._rank: f"has lost another rank: {str(error).splitlines()[0]}"}) from error
        return [theirs.tolist() for theirs in everyone]
