"""An engine whose ranks are threads of the test: quick to start, and open to look into."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import pytest
import torch
from torch import Tensor

from hicache_storage.engine_integration.parallel.agree import Group
from hicache_storage.engine_integration.parallel.ranks import Ranks
from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.engine_integration.reference_engine import messages
from hicache_storage.engine_integration.reference_engine.engine import EngineRank
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.engine_integration.reference_engine.messages import Command, Event, Shutdown
from hicache_storage.engine_integration.reference_engine.serving import serve
from hicache_storage.layout import Topology
from tests.engine_integration.parallel.pipeline import places

TIMEOUT_S = 60.0


class _Meeting:
    """Where threads exchange anything, each its own, once a turn."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=TIMEOUT_S)
        self._board: list[object] = [None] * size

    def exchange(self, index: int, mine: object) -> list[object]:
        self._board[index] = mine
        self.barrier.wait()
        everyone = list(self._board)
        self.barrier.wait()
        return everyone


class Wires:
    """What connects the ranks of one engine."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        size = topology.tp * topology.pp
        self.everyone = _Meeting(size)
        self.stages = [_Meeting(topology.tp) for _ in range(topology.pp)]
        self.edges: dict[tuple[int, int], queue.SimpleQueue[Tensor]] = {
            rank: queue.SimpleQueue() for rank in topology.ranks()
        }
        self.groups = ThreadGroup.of(size, timeout_s=TIMEOUT_S)
        self.copies = [ThreadGroup.of(size, timeout_s=TIMEOUT_S) for _ in range(2)]
        self.places = places(topology.pp, topology.tp, timeout_s=TIMEOUT_S)
        self.new_groups: list[list[ThreadGroup]] = []

    def cut(self) -> None:
        """Let every rank that waits, or will, fail."""
        for meeting in (self.everyone, *self.stages):
            meeting.barrier.abort()
        for ends in (self.groups, *self.copies, *self.new_groups):
            ends[0].leave()
        for place in self.places:
            place.leave()


class ThreadPeers:
    """One thread's way to the others; see `Peers`."""

    def __init__(self, wires: Wires, tp_rank: int, pp_rank: int) -> None:
        self.topology = wires.topology
        self.tp_rank, self.pp_rank = tp_rank, pp_rank
        self._wires = wires
        self._rank = pp_rank * wires.topology.tp + tp_rank
        self.group: Group = wires.groups[self._rank]
        backups, loads = (ends[self._rank] for ends in wires.copies)
        self.ranks = Ranks(wires.places[self._rank].sync, backups, loads, TIMEOUT_S)

    def tensor_sum(self, tensor: Tensor) -> Tensor:
        if self.topology.tp == 1:
            return tensor
        everyone = self._wires.stages[self.pp_rank].exchange(self.tp_rank, tensor)
        return torch.stack([theirs for theirs in everyone if isinstance(theirs, Tensor)]).sum(dim=0)

    def send(self, hidden: Tensor) -> None:
        self._wires.edges[self.tp_rank, self.pp_rank].put(hidden.clone())

    def receive(self, like: Tensor) -> Tensor:
        hidden = self._wires.edges[self.tp_rank, self.pp_rank - 1].get(timeout=TIMEOUT_S)
        assert (hidden.shape, hidden.dtype) == (like.shape, like.dtype)
        return hidden

    def share(self, data: bytes) -> bytes:
        shared = self._wires.everyone.exchange(self._rank, data)[0]
        assert isinstance(shared, bytes)
        return shared

    def agree_on_tokens(self, tokens: Sequence[int]) -> list[int]:
        agreed = self._wires.everyone.exchange(self._rank, list(tokens))[(self.topology.pp - 1) * self.topology.tp]
        assert isinstance(agreed, list)
        return agreed

    def gather(self, data: bytes) -> list[bytes]:
        return [theirs for theirs in self._wires.everyone.exchange(self._rank, data) if isinstance(theirs, bytes)]

    def new_groups(self, count: int) -> list[Group]:
        if self._rank == 0:
            size = self.topology.tp * self.topology.pp
            self._wires.new_groups = [ThreadGroup.of(size, timeout_s=TIMEOUT_S) for _ in range(count)]
        self._wires.everyone.exchange(self._rank, None)
        mine: list[Group] = [ends[self._rank] for ends in self._wires.new_groups]
        self._wires.everyone.exchange(self._rank, None)
        return mine

    def drop_groups(self, groups: Sequence[Group]) -> None:
        pass

    def close(self) -> None:
        pass


class Steps:
    """Has the engines that are made from now on take steps when the test says so: none before that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._may, self._begun = threading.Semaphore(0), threading.Semaphore(0)
        self._are_free = False
        step = EngineRank.step

        def step_if_told(engine: EngineRank, commands: Sequence[Command]) -> bool:
            if engine._is_first and not self._are_free:
                assert self._may.acquire(timeout=TIMEOUT_S)
                self._begun.release()
            return step(engine, commands)

        monkeypatch.setattr(EngineRank, "step", step_if_told)

    def take(self, count: int) -> None:
        """Return once so many more have begun."""
        for _ in range(count):
            self._may.release()
            assert self._begun.acquire(timeout=TIMEOUT_S)

    def go_on(self) -> None:
        """Let them be taken as they come."""
        self._are_free = True
        self._may.release()


def judge_books(engine: EngineRank) -> None:
    """Judge that a rank that was closed holds nothing but what its tree can forget."""
    tiers = engine.tiers
    tiers.controller.check(hashes=True)
    tiers.controller.flush()
    assert (tiers.device.num_held, tiers.host.num_held) == (0, 0)


class ThreadEngine:
    """The same calls as `EngineClient`, and the ranks themselves; every rank's books are judged at the end.

    Attributes:
        ranks: in the order in which they are counted; to be looked into while they are idle.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        wires = Wires(config.ranks)
        self._wires = wires
        self._inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.errors: list[BaseException] = []
        self._peers = [ThreadPeers(wires, tp_rank, pp_rank) for tp_rank, pp_rank in config.ranks.ranks()]
        self.ranks: list[EngineRank | None] = [None] * len(self._peers)
        self._ready = threading.Barrier(len(self._peers) + 1, timeout=TIMEOUT_S)
        self._threads = [
            threading.Thread(target=self._run, args=(rank,), daemon=True) for rank in range(len(self._peers))
        ]
        for thread in self._threads:
            thread.start()
        try:
            self._ready.wait()
        except threading.BrokenBarrierError:
            self._join()
            raise

    def send(self, command: Command) -> None:
        self._inbox.put(messages.encode(command))

    def receive(self) -> Event | None:
        event = self._events.get(timeout=TIMEOUT_S)
        if event is None and self.errors:
            raise self.errors[0]
        return event

    def close(self) -> None:
        self.send(Shutdown())
        self._join()

    def rank(self, index: int = 0) -> EngineRank:
        rank = self.ranks[index]
        assert rank is not None
        return rank

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(4 * TIMEOUT_S)  # a rank waits for each one in front of it
        if self.errors:
            raise self.errors[0]
        assert not any(thread.is_alive() for thread in self._threads)

    def _run(self, index: int) -> None:
        peers = self._peers[index]
        try:
            torch.set_num_threads(1)
            engine = EngineRank(self.config, peers)
            self.ranks[index] = engine
            self._ready.wait()
            serve(engine, peers, self._inbox, self._events.put)
            judge_books(engine)
        except BaseException as error:
            self.errors.append(error)
            self._wires.cut()
            self._ready.abort()
        finally:
            if index == 0:
                self._events.put(None)
