"""Ranks as threads, each with a checker, and functions that are decorated while it is on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

from hicache_storage.engine_integration.consensus import Checker, ConsensusOptions
from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.layout import Topology

PATIENCE_S = 60.0
T = TypeVar("T")


def options(
    *, on_divergence: Literal["report", "stop"] = "report", log_folder: Path | None = None, history: int = 16
) -> ConsensusOptions:
    return ConsensusOptions(checker=True, on_divergence=on_divergence, log_folder=log_folder, history=history)


class Ranks:
    """The ranks of a deployment; `run` lets each act on a thread of its own while its calls are recorded."""

    def __init__(self, topology: str, chosen: ConsensusOptions) -> None:
        self.topology = Topology.parse(topology)
        self.groups = ThreadGroup.of(self.topology.tp * self.topology.pp, timeout_s=PATIENCE_S)
        self.checkers = self._each(lambda rank: Checker(self.groups[rank], self.topology, chosen))

    def run(self, act: Callable[[int], object]) -> list[object]:
        """Return what *act* returned or raised for each rank; every checker has ended."""

        def acting(rank: int) -> object:
            checker = self.checkers[rank]
            try:
                with checker.guard():
                    return act(rank)
            except Exception as error:
                return error
            finally:
                checker.close()

        return self._each(acting)

    def _each(self, part: Callable[[int], T]) -> list[T]:
        with ThreadPoolExecutor(len(self.groups)) as ranks:
            return list(ranks.map(part, range(len(self.groups))))


class Turns:
    """Lets threads act in an order that the test sets: `wait` returns once *count* others have called `done`."""

    def __init__(self) -> None:
        self._done = threading.Semaphore(0)

    def done(self) -> None:
        self._done.release()

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._done.acquire(timeout=PATIENCE_S)
