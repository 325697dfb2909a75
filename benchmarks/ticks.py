"""What `pp_sync` times: ticks of controllers that have nothing to do, on ranks that are threads or processes.

A process is one rank, run as ``python -m benchmarks.ticks RANK TOPOLOGY MEETING``: each line ``way count`` on stdin is
answered by the seconds that so many ticks took.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.machine import ROOT
from hicache_storage.engine_integration.controller import Controller, Pools
from hicache_storage.engine_integration.parallel.agree import Group, agree_mins
from hicache_storage.engine_integration.parallel.pp import StepSync
from hicache_storage.engine_integration.parallel.ranks import Ranks
from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.engine_integration.parallel.thread_link import ThreadLink
from hicache_storage.engine_integration.tiers.slots import PageAllocator
from hicache_storage.layout import Topology

_DEADLINE_S = 120.0
_PAGES = 64

WAYS = ("pp_sync", "all_ranks")
"""How a tick is agreed on: as the controller does it, or in one collective of all ranks."""

Ticks = Callable[[str, int], float]
"""Way and number of ticks -> the seconds of the slowest rank."""


class _Rank:
    def __init__(self, ranks: Ranks, everyone: Group) -> None:
        self._controller = Controller(16, Pools(PageAllocator(_PAGES), PageAllocator(_PAGES)), ranks=ranks)
        self._everyone = everyone

    def seconds(self, way: str, count: int) -> float:
        tick = self._controller.step if way == "pp_sync" else self._meet
        self._meet()
        start = time.perf_counter()
        for _ in range(count):
            tick()
        return time.perf_counter() - start

    def _meet(self) -> None:
        agree_mins(self._everyone, "meet", lambda: (0, 0, 0, 0, 0), 5)


@contextmanager
def thread_ticks(topology: Topology) -> Iterator[Ticks]:
    """Yield what times ticks of ranks that are threads of this process."""
    size = topology.tp * topology.pp
    everyone, backups, loads = (ThreadGroup.of(size, timeout_s=_DEADLINE_S) for _ in range(3))
    stages = [ThreadGroup.of(topology.tp, timeout_s=_DEADLINE_S) for _ in range(topology.pp)]
    columns = [
        ThreadLink.chain(topology.pp, timeout_s=_DEADLINE_S, tp_rank=tp_rank, tp=topology.tp)
        for tp_rank in range(topology.tp)
    ]

    def made(rank: int) -> _Rank:
        stage, tp_rank = divmod(rank, topology.tp)
        link = columns[tp_rank][stage] if topology.pp > 1 else None
        ranks = Ranks(StepSync(stages[stage][tp_rank], link), backups[rank], loads[rank], _DEADLINE_S)
        return _Rank(ranks, everyone[rank])

    with ThreadPoolExecutor(size) as threads:
        ranks = list(threads.map(made, range(size)))
        yield lambda way, count: max(threads.map(lambda rank: rank.seconds(way, count), ranks))


@contextmanager
def process_ticks(topology: Topology, scratch: Path) -> Iterator[Ticks]:
    """Yield what times ticks of ranks that are processes, over gloo."""
    meeting = scratch / f"ticks-{topology.name}"
    meeting.touch()
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.ticks", str(rank), topology.name, str(meeting)],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(topology.tp * topology.pp)
        ]
        yield lambda way, count: max(_asked(children, f"{way} {count}"))
        for child in children:  # all of them: each leaves only together with the others
            if child.stdin is not None:
                child.stdin.close()
        for child in children:
            child.wait(_DEADLINE_S)


def _asked(children: Sequence[subprocess.Popen[str]], line: str) -> list[float]:
    for child in children:
        assert child.stdin is not None
        print(line, file=child.stdin, flush=True)
    return [float(child.stdout.readline()) for child in children if child.stdout is not None]


def _serve(rank: int, topology: Topology, meeting: Path) -> None:
    from hicache_storage.engine_integration.reference_engine.process_peers import ProcessPeers  # noqa: PLC0415 - torch

    with meeting.open("r+b") as rendezvous:
        peers = ProcessPeers(
            topology,
            rank,
            rendezvous=rendezvous.fileno(),
            uses_gpu=False,
            timeout_s=_DEADLINE_S,
            background_timeout_s=_DEADLINE_S,
        )
        one = _Rank(peers.ranks, peers.group)
        for line in sys.stdin:
            way, count = line.split()
            print(one.seconds(way, int(count)), flush=True)
        peers.close()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Topology.parse(sys.argv[2]), Path(sys.argv[3]))
