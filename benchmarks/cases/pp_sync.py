"""What staying in step costs: a tick of the controllers of all ranks, beside one step of an engine of the same topology.

A tick is `Controller.step` with nothing to apply: what an engine pays in every step. The engine is the reference engine
with a small model that generates one token for each of eight requests in a step, a process for each rank.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from importlib.metadata import version

from benchmarks.engine_steps import REQUESTS, SHAPE, seconds_of_steps
from benchmarks.rows import Row
from benchmarks.runner import Settings, percentiles, say
from benchmarks.ticks import WAYS, Ticks, process_ticks, thread_ticks
from hicache_storage.engine_integration.reference_engine.client import EngineClient
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.layout import Topology

_TOPOLOGIES = ("tp1pp1", "tp1pp2", "tp2pp2", "tp1pp4")
_CALLS = {"scheduler_step": "Scheduler.step", "pp_sync": "Controller.step", "all_ranks": "agree_mins of all ranks"}


def pp_sync(settings: Settings) -> list[Row]:
    rows: list[Row] = []
    for name in _TOPOLOGIES[:1] if settings.small else _TOPOLOGIES:
        topology = Topology.parse(name)
        step_s = _step_seconds(settings, topology)
        with thread_ticks(topology) as ticks:
            rows += _rows(settings, f"{name}, threads", topology, step_s, ticks)
        with process_ticks(topology, settings.scratch) as ticks:
            rows += _rows(settings, f"{name}, processes", topology, step_s, ticks)
    return rows


def _step_seconds(settings: Settings, topology: Topology) -> list[float]:
    """Return the seconds of one step, of each round."""
    config = EngineConfig(model_id="random", random=SHAPE, topology=topology.name, threads=1)
    with EngineClient(config) as engine:
        steps = 3 if settings.small else 32
        return [seconds_of_steps(engine, number, steps) / steps for number in range(settings.rounds + 1)][1:]


def _rows(settings: Settings, operation: str, topology: Topology, step_s: list[float], ticks: Ticks) -> list[Row]:
    """Return a row for a step, and one for each way of a tick, whose share says how many of them a step would hold."""
    count = 10 if settings.small else 500
    seconds: dict[str, list[float]] = {"scheduler_step": step_s, **{way: [] for way in WAYS}}
    with ExitStack() as stack:
        stack.callback(say, "")
        for number in range(settings.rounds + 1):
            for way in WAYS[:: 1 if number % 2 else -1]:
                taken = ticks(way, count) / count
                if number:
                    seconds[way].append(taken)
            say(f"pp_sync {operation}: round {number}/{settings.rounds}", end="\r")
    return [_row(settings, operation, topology, name, seconds) for name in seconds]


def _row(settings: Settings, operation: str, topology: Topology, name: str, seconds: dict[str, list[float]]) -> Row:
    own, raw = seconds[name], "scheduler_step"
    p20, p50, p80 = percentiles(own)
    return Row(
        case="pp_sync",
        operation=operation,
        subject=name,
        version=version("hicache-storage"),
        object_nbytes=0,
        objects=1,
        batch=REQUESTS,
        threads=topology.tp * topology.pp,
        rounds=len(own),
        p20_s=p20,
        p50_s=p50,
        p80_s=p80,
        best_s=min(own),
        gb_s=None,
        us_per_object=p50 * 1e6,
        share_of_raw=statistics.median(limit / mine for limit, mine in zip(seconds[raw], own, strict=True)),
        raw=raw,
        page_cache="in memory",
        calls=_CALLS[name],
        provenance=settings.provenance,
    )
