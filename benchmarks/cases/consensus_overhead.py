"""What the rank consensus checker costs: a decorated call, and a scheduler's step of running engines.

A call is one of a function with two compared parameters. A step generates one token for each of eight requests, on
engines that differ in nothing but the checker: every rank is a process, all of them on this machine's cores.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version

from benchmarks.engine_steps import REQUESTS, SHAPE, seconds_of_steps
from benchmarks.rows import Row
from benchmarks.runner import Settings, percentiles, say
from benchmarks.subject import timed
from hicache_storage.engine_integration.consensus import rank_consensus
from hicache_storage.engine_integration.consensus.recorder import Recorder, recording
from hicache_storage.engine_integration.reference_engine.client import EngineClient
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.engine_integration.reference_engine.random_shape import RandomShape

_CALLS = 2_000
_STEPS = 32
_TOPOLOGIES = {"TP1": "tp1pp1", "TP2/PP2": "tp2pp2"}
_SWITCH = "HICACHE_RANK_CONSENSUS_CHECKER"

Passes = dict[str, Callable[[], float]]
"""Subject -> one timed pass, in seconds."""


def consensus_overhead(settings: Settings) -> list[Row]:
    rows = _call_rows(settings)
    for name, topology in list(_TOPOLOGIES.items())[: 1 if settings.small else None]:
        rows += _step_rows(settings, name, topology)
    return rows


def _call_rows(settings: Settings) -> list[Row]:
    calls = 10 if settings.small else _CALLS
    off, on = _decorated("0"), _decorated("1")
    passes = {
        "not_decorated": lambda: timed(lambda: _call(_lock, calls)),
        "checker_off": lambda: timed(lambda: _call(off, calls)),
        "checker_on": lambda: _recorded_seconds(on, calls),
    }
    return _rows(settings, "call", "a method's call", passes, objects=calls, batch=1, threads=1)


def _lock(node: int, tier: str) -> tuple[int, str]:
    return node, tier


def _decorated(switch: str) -> Callable[[int, str], tuple[int, str]]:
    """Return `_lock`, decorated while the checker is on or off."""
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = switch
    try:
        return rank_consensus(same_params=("node", "tier"))(_lock)
    finally:
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before


def _call(function: Callable[[int, str], tuple[int, str]], calls: int) -> None:
    for number in range(calls):
        function(number, "device")


def _recorded_seconds(function: Callable[[int, str], tuple[int, str]], calls: int) -> float:
    with recording(Recorder()):
        return timed(lambda: _call(function, calls))


def _step_rows(settings: Settings, name: str, topology: str) -> list[Row]:
    with ExitStack() as stack:
        passes = {
            subject: stack.enter_context(_engine(settings, topology, mode))
            for subject, mode in (("checker_off", "off"), ("checker_on", "report"))
        }
        ranks = EngineConfig(model_id="", random=SHAPE, topology=topology).ranks
        return _rows(
            settings,
            f"step, {name}",
            "Scheduler.step",
            passes,
            objects=_steps(settings),
            batch=REQUESTS,
            threads=ranks.tp * ranks.pp,
        )


@contextmanager
def _engine(settings: Settings, topology: str, mode: str) -> Iterator[Callable[[], float]]:
    """Start an engine and yield what times its steps."""
    config = EngineConfig(
        model_id="random",
        random=RandomShape() if settings.small else SHAPE,
        topology=topology,
        threads=1,
        rank_consensus="report" if mode == "report" else "off",
    )
    serial = iter(range(1 << 30))
    with EngineClient(config) as engine:
        yield lambda: seconds_of_steps(engine, next(serial), _steps(settings))


def _steps(settings: Settings) -> int:
    return 3 if settings.small else _STEPS


def _rows(
    settings: Settings, operation: str, calls: str, passes: Passes, *, objects: int, batch: int, threads: int
) -> list[Row]:
    """Run all *passes* in turn, once to warm up and then timed; shares are of the first one."""
    names = list(passes)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(settings.rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            taken = passes[name]()
            if number:
                seconds[name].append(taken)
        say(f"consensus_overhead {operation}: round {number}/{settings.rounds}", end="\r")
    say("")
    return [_row(settings, operation, name, seconds, calls=calls, size=(objects, batch, threads)) for name in names]


def _row(
    settings: Settings,
    operation: str,
    name: str,
    seconds: dict[str, list[float]],
    *,
    calls: str,
    size: tuple[int, int, int],
) -> Row:
    objects, batch, threads = size
    own, raw = seconds[name], next(iter(seconds))
    p20, p50, p80 = percentiles(own)
    return Row(
        case="consensus_overhead",
        operation=operation,
        subject=name,
        version=version("hicache-storage"),
        object_nbytes=0,
        objects=objects,
        batch=batch,
        threads=threads,
        rounds=len(own),
        p20_s=p20,
        p50_s=p50,
        p80_s=p80,
        best_s=min(own),
        gb_s=None,
        us_per_object=p50 / objects * 1e6,
        share_of_raw=statistics.median(limit / mine for limit, mine in zip(seconds[raw], own, strict=True)),
        raw=raw,
        page_cache="in memory",
        calls=calls,
        provenance=settings.provenance,
    )
