"""One run of some cases: checks the machine, measures, and puts the results where they belong."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from benchmarks.machine import Provenance, check_folder
from benchmarks.peers.environments import select
from benchmarks.registry import CASES
from benchmarks.rows import Result, save, to_csv, to_json
from benchmarks.runner import Settings, say, scratch_folder
from benchmarks.subjects.factory import SubjectPool
from benchmarks.tables import TABLES


def run_cases(options: argparse.Namespace, results: Path) -> int:
    """Measure ``options.cases``; print tables or JSON on stdout and save rows.

    Raises:
        ValueError: an unknown case or peer, a folder in memory, or a machine that is too busy.
    """
    names = options.cases or [name for name, case in CASES.items() if not case.servers]
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise ValueError(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    check_folder(options.folder, allow_tmpfs=options.tmpfs)
    _check_load(options.max_load)
    provenance = Provenance.here(options.folder, _command(options, options.cases))
    if provenance.noisy:
        say(f"load average {provenance.load1}: the machine is busy, the rows will say so")
    rows: list[Result] = []
    with scratch_folder(options.folder) as scratch, closing(SubjectPool(scratch)) as subjects:
        settings = Settings(
            scratch=scratch,
            subjects=subjects,
            peers=tuple(select(options.peers)),
            provenance=provenance,
            rounds=options.repeat,
            small=options.small,
        )
        for name in names:
            found = CASES[name].run(settings)
            rows += found
            _deliver(name, found, options, results)
    if options.out:
        options.out.write_text(to_json(rows) if options.out.suffix == ".json" else to_csv(rows))
    if options.json:
        print(to_json(rows))
    return 0


def _deliver(name: str, found: Sequence[Result], options: argparse.Namespace, results: Path) -> None:
    if not options.out and not options.small:
        say(f"{name}: {len(found)} rows to {save(found, results).name}")
    if options.json:
        return
    for title, (cases, make) in TABLES.items():
        if cases == (name,):
            print(f"\n{title}\n\n{make(found)}")


def _check_load(most: float | None) -> None:
    load = os.getloadavg()[0]
    if most is not None and load > most:
        raise ValueError(f"load average {load:.2f} is above --max-load {most}: figures would mean little")


def _command(options: argparse.Namespace, names: Sequence[str]) -> str:
    """Return what to type to repeat the run; folders are the reader's own business."""
    peers = ["--peers", options.peers] if options.peers != "auto" else []
    return " ".join(["python -m benchmarks run", *names, "--repeat", str(options.repeat), *peers])
