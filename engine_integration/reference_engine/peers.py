"""One rank's way to the others: what a rank of this engine needs of whatever connects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from hicache_storage.engine_integration.parallel.agree import Group, SingleRank
from hicache_storage.engine_integration.parallel.ranks import Ranks
from hicache_storage.layout import Topology


class Peers(Protocol):
    """The ranks of one engine, counted stage by stage as `Topology.ranks` does. For the scheduler's thread alone.

    Every method but `send` and `receive` is called by all ranks, in the same order.

    Raises:
        RankFailure: from any method, if another rank is gone or late.
    """

    @property
    def topology(self) -> Topology: ...

    @property
    def tp_rank(self) -> int: ...

    @property
    def pp_rank(self) -> int: ...

    @property
    def group(self) -> Group:
        """All ranks at the same time: at the start, for stores that come and go, for the tokens of a batch."""

    @property
    def ranks(self) -> Ranks:
        """All ranks, each in its own time: for the scheduler's steps."""

    def tensor_sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over this stage's ranks, the same on each; may reuse *tensor*."""

    def send(self, hidden: Tensor) -> None:
        """Pass *hidden* on to the same tensor-parallel rank of the next stage."""

    def receive(self, like: Tensor) -> Tensor:
        """Return *like*, filled with what the stage before sends."""

    def share(self, data: bytes) -> bytes:
        """Return the first rank's *data*; the others' is ignored."""

    def agree_on_tokens(self, tokens: Sequence[int]) -> list[int]:
        """Return what the first rank of the last stage says; all name equally many."""

    def gather(self, data: bytes) -> list[bytes]:
        """Return every rank's *data*, in rank order."""

    def new_groups(self, count: int) -> list[Group]:
        """Return *count* new groups of all ranks, for threads that agree on different things."""

    def drop_groups(self, groups: Sequence[Group]) -> None:
        """Give up what `new_groups` made; nobody uses it any more."""

    def close(self) -> None:
        """Leave, once every rank is done."""


class NoPeers:
    """The way of a rank that is alone."""

    topology = Topology()
    tp_rank = 0
    pp_rank = 0
    group: Group = SingleRank()

    def __init__(self) -> None:
        self.ranks = Ranks()

    def tensor_sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def send(self, hidden: Tensor) -> None:
        """There is no next stage."""

    def receive(self, like: Tensor) -> Tensor:
        return like

    def share(self, data: bytes) -> bytes:
        return data

    def agree_on_tokens(self, tokens: Sequence[int]) -> list[int]:
        return list(tokens)

    def gather(self, data: bytes) -> list[bytes]:
        return [data]

    def new_groups(self, count: int) -> list[Group]:
        return [SingleRank() for _ in range(count)]

    def drop_groups(self, groups: Sequence[Group]) -> None:
        """There is nothing to give up."""

    def close(self) -> None:
        """There is nobody to leave."""
