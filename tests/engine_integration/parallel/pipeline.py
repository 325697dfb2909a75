"""Stages of a pipeline as threads: `StepSync` for each, in any shape."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from hicache_storage.engine_integration.parallel.pp import StepSync
from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.engine_integration.parallel.thread_link import ThreadLink

PATIENCE_S = 60.0
SHAPES = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2)]
"""(stages, TP ranks of each)"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """One rank, as a test sees it."""

    rank: int
    stage: int
    tp_rank: int
    sync: StepSync
    group: ThreadGroup
    link: ThreadLink

    def leave(self) -> None:
        """Be gone: whoever waits for this rank fails at once."""
        self.group.leave()
        self.link.leave()


def places(num_stages: int, tp: int, *, timeout_s: float = PATIENCE_S, window: int = 32) -> list[Place]:
    """Return the ranks of a deployment, counted stage by stage."""
    groups = [ThreadGroup.of(tp, timeout_s=timeout_s) for _ in range(num_stages)]
    columns = [
        ThreadLink.chain(num_stages, timeout_s=timeout_s, tp_rank=tp_rank, tp=tp, window=window)
        for tp_rank in range(tp)
    ]
    return [
        Place(
            stage * tp + tp_rank,
            stage,
            tp_rank,
            StepSync(groups[stage][tp_rank], columns[tp_rank][stage] if num_stages > 1 else None),
            groups[stage][tp_rank],
            columns[tp_rank][stage],
        )
        for stage in range(num_stages)
        for tp_rank in range(tp)
    ]


def on_all(ranks: list[Place], act: Callable[[Place], T], *, ends: bool = False) -> list[T | Exception]:
    """Return what *act* returned or raised on each rank, all of them at once.

    Args:
        ends: a rank that has raised is gone, as its process would be.
    """

    def acting(place: Place) -> T | Exception:
        try:
            return act(place)
        except Exception as error:
            if ends:
                place.leave()
            return error

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(acting, ranks))
