"""The ranks of one deployment, each in a process of its own, over torch.distributed's gloo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import Tensor, distributed

from hicache_storage.engine_integration.reference_engine.llama import TensorSum, sum_of_one
from hicache_storage.errors import RankFailure
from hicache_storage.layout import Topology


class Ranks:
    """This rank's way to the others. A single rank talks to nobody and needs no process group.

    Global rank numbers go stage by stage, as `Topology.ranks` counts. Every `agree_*` method is
    called by all ranks; a lost rank makes it raise `RankFailure` on the others.

    Args:
        rendezvous: descriptor of an empty file that every rank has open. A file without a name will do,
            so that nothing is left of it when the ranks are killed.
        timeout_s: how long to wait for another rank.
    """

    def __init__(self, topology: Topology, *, tp_rank: int, pp_rank: int, rendezvous: int, timeout_s: float) -> None:
        self._topology = topology
        self._rank = pp_rank * topology.tp + tp_rank
        self._single = topology.tp * topology.pp == 1
        self._tp_group: distributed.ProcessGroup | None = None
        if not self._single:
            self._connect(rendezvous, timeout_s, pp_rank)

    def _connect(self, rendezvous: int, timeout_s: float, pp_rank: int) -> None:
        tp, pp = self._topology.tp, self._topology.pp
        with _lost_rank("connect", self._rank):
            distributed.init_process_group(
                "gloo",
                init_method=f"file:///proc/self/fd/{rendezvous}",
                rank=self._rank,
                world_size=tp * pp,
                timeout=timedelta(seconds=timeout_s),
            )
            for stage in range(pp):  # every rank takes part in making every group
                group = distributed.new_group(list(range(stage * tp, (stage + 1) * tp)), backend="gloo")
                self._tp_group = group if stage == pp_rank else self._tp_group

    @property
    def tensor_sum(self) -> TensorSum:
        """The sum over this stage's tensor-parallel ranks, in place."""
        return sum_of_one if self._topology.tp == 1 else self._sum

    def _sum(self, tensor: Tensor) -> Tensor:
        with _lost_rank("tensor sum", self._rank):
            distributed.all_reduce(tensor, group=self._tp_group)
        return tensor

    def pass_on(self, hidden: Tensor) -> None:
        """Send *hidden* to the same tensor-parallel rank of the next stage."""
        with _lost_rank("pass on", self._rank):
            distributed.send(hidden.contiguous(), self._rank + self._topology.tp)

    def receive(self, like: Tensor) -> Tensor:
        """Return *like*, filled with what the stage before passes on."""
        with _lost_rank("receive", self._rank):
            distributed.recv(like, self._rank - self._topology.tp)
        return like

    def agree_on_token(self, token: int) -> int:
        """Return the token that the first rank of the last stage names; the others' are ignored."""
        if self._single:
            return token
        agreed = torch.tensor([token], dtype=torch.int64)
        with _lost_rank("token", self._rank):
            distributed.broadcast(agreed, (self._topology.pp - 1) * self._topology.tp)
        return int(agreed.item())

    def agree_min(self, value: int) -> int:
        """Return the smallest of all ranks' values."""
        if self._single:
            return value
        agreed = torch.tensor([value], dtype=torch.int64)
        with _lost_rank("agree", self._rank):
            distributed.all_reduce(agreed, op=distributed.ReduceOp.MIN)
        return int(agreed.item())

    def close(self) -> None:
        """Leave the group once every rank is done."""
        if not self._single:
            self.agree_min(0)
            distributed.destroy_process_group()


@contextmanager
def _lost_rank(step: str, rank: int) -> Iterator[None]:
    """Turn gloo's error, raised when a peer is gone or late, into `RankFailure`."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise RankFailure(step, {rank: str(error).splitlines()[0]}) from error
