"""Ranks as processes over torch.distributed: gloo on CPUs, nccl for what the GPUs compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import Tensor, distributed

from hicache_storage.engine_integration.parallel.agree import Group, SingleRank, agree_each
from hicache_storage.engine_integration.parallel.pp import Position, StepSync
from hicache_storage.engine_integration.parallel.ranks import Ranks
from hicache_storage.engine_integration.parallel.torch_group import TorchGroup
from hicache_storage.engine_integration.parallel.torch_link import TorchLink
from hicache_storage.errors import InvariantError, RankFailure
from hicache_storage.layout import Topology

_STEP_TAG = 1
"""Of messages between schedulers; what the models send each other has tag 0."""


class ProcessPeers:
    """One process among those of an engine. See `Peers`.

    Args:
        rank: this process, counted stage by stage.
        rendezvous: descriptor of an empty file that every rank has open. A file without a name will do,
            so that nothing is left of it when the ranks are killed.
        uses_gpu: hidden states lie on GPUs.
        timeout_s: how long to wait for another rank.
        background_timeout_s: the same for `new_groups`.
    """

    def __init__(
        self,
        topology: Topology,
        rank: int,
        *,
        rendezvous: int,
        uses_gpu: bool,
        timeout_s: float,
        background_timeout_s: float,
    ) -> None:
        self.topology = topology
        self.pp_rank, self.tp_rank = divmod(rank, topology.tp)
        self._rank = rank
        self._background_timeout = timedelta(seconds=background_timeout_s)
        timeout = timedelta(seconds=timeout_s)
        self._groups: list[tuple[Group, distributed.ProcessGroup]] = []
        self._tp_group: distributed.ProcessGroup | None = None
        with self._lost_rank("connect"):
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if uses_gpu else "gloo",
                init_method=f"file:///proc/self/fd/{rendezvous}",
                rank=rank,
                world_size=topology.tp * topology.pp,
                timeout=timeout,
            )
            for stage in range(topology.pp):  # every rank takes part in making every group
                ranks = list(range(stage * topology.tp, (stage + 1) * topology.tp))
                # A group does not inherit the deadline of the one that it is made from.
                group = distributed.new_group(ranks, timeout=timeout)
                self._tp_group = group if stage == self.pp_rank else self._tp_group
        self.group: Group = TorchGroup()
        self._link: TorchLink | None = None
        self.ranks = self._ranks(timeout_s)

    def tensor_sum(self, tensor: Tensor) -> Tensor:
        if self.topology.tp > 1:
            with self._lost_rank("tensor sum"):
                distributed.all_reduce(tensor, group=self._tp_group)
        return tensor

    def send(self, hidden: Tensor) -> None:
        with self._lost_rank("send"):
            distributed.send(hidden.contiguous(), self._rank + self.topology.tp)

    def receive(self, like: Tensor) -> Tensor:
        with self._lost_rank("receive"):
            distributed.recv(like, self._rank - self.topology.tp)
        return like

    def share(self, data: bytes) -> bytes:
        length = torch.tensor([len(data)], dtype=torch.int64)
        with self._lost_rank("share"):
            distributed.broadcast(length, 0)
            if not length.item():
                return b""
            shared = _tensor_of(data) if self._rank == 0 else torch.empty(int(length.item()), dtype=torch.uint8)
            distributed.broadcast(shared, 0)
        return shared.numpy().tobytes()

    def agree_on_tokens(self, tokens: Sequence[int]) -> list[int]:
        agreed = torch.tensor(tokens, dtype=torch.int64)
        with self._lost_rank("tokens"):
            distributed.broadcast(agreed, (self.topology.pp - 1) * self.topology.tp)
        return agreed.tolist()

    def gather(self, data: bytes) -> list[bytes]:
        lengths = [length for (length,) in agree_each(self.group, "gather", lambda: (len(data),), 1)]
        padded = torch.zeros(max(1, *lengths), dtype=torch.uint8)
        padded[: len(data)] = _tensor_of(data)
        everyone = [torch.empty_like(padded) for _ in lengths]
        with self._lost_rank("gather"):
            distributed.all_gather(everyone, padded)
        return [theirs.numpy().tobytes()[:length] for theirs, length in zip(everyone, lengths, strict=True)]

    def new_groups(self, count: int) -> list[Group]:
        return [self._new_group(self._background_timeout) for _ in range(count)]

    def drop_groups(self, groups: Sequence[Group]) -> None:
        for group, made in self._groups:
            if any(group is one for one in groups):
                distributed.destroy_process_group(made)
        self._groups = [pair for pair in self._groups if not any(pair[0] is one for one in groups)]

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        with self._lost_rank("close"):
            distributed.barrier()
            distributed.destroy_process_group()

    def _ranks(self, timeout_s: float) -> Ranks:
        topology = self.topology
        tp_group = TorchGroup(self._tp_group) if topology.tp > 1 else SingleRank()
        if topology.pp > 1:
            position = Position(self.pp_rank, topology.pp, self.tp_rank, topology.tp)
            self._link = TorchLink(position, tag=_STEP_TAG, timeout_s=timeout_s)
        backups, loads = (self._new_group(timedelta(seconds=timeout_s)) for _ in range(2))
        return Ranks(StepSync(tp_group, self._link), backups, loads, timeout_s)

    def _new_group(self, timeout: timedelta) -> Group:
        with self._lost_rank("new group"):
            made = distributed.new_group(backend="gloo", timeout=timeout)
        if not isinstance(made, distributed.ProcessGroup):
            raise InvariantError("a new group of all ranks leaves this one out")
        group = TorchGroup(made)
        self._groups.append((group, made))
        return group

    @contextmanager
    def _lost_rank(self, step: str) -> Iterator[None]:
        """Turn gloo's error, raised when a peer is gone or late, into `RankFailure`."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            raise RankFailure(step, {self._rank: f"has lost another rank: {str(error).splitlines()[0]}"}) from error


def _tensor_of(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
