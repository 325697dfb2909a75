"""Measures subjects side by side: every round runs each of them once, in turn, so drift hits all alike."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.machine import ROOT, Provenance
from benchmarks.rows import Row
from benchmarks.subject import Subject, SubjectFailed
from benchmarks.subjects.factory import SubjectPool
from benchmarks.workload import Workload

_READS = ("read", "ranged")


class WrongBytes(Exception):
    """A subject did not deliver what was stored; no figure of it is worth anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a run is done, the same for every case.

    Attributes:
        scratch: an empty folder on the filesystem to measure; the caller removes it.
        subjects: opens each subject once; the caller closes it.
        peers: names of the peers that take part.
        rounds: timed passes per subject, after one that warms up.
        small: four small objects instead of real sizes: a check of the harness, not a measurement.
    """

    scratch: Path
    subjects: SubjectPool
    peers: tuple[str, ...]
    provenance: Provenance
    rounds: int = 11
    small: bool = False

    def sized(self, workload: Workload) -> Workload:
        """Return *workload*, cut down when this run only checks the harness."""
        if not self.small:
            return workload
        return replace(
            workload,
            objects=min(8, workload.objects),
            batch=4,
            num_layers=min(2, workload.num_layers),
            kv_heads=min(1, workload.kv_heads),
            group_heads=0,
            head_dim=64,
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """One subject's times beside those of the limit in the same rounds."""

    case: str
    operation: str
    workload: Workload
    name: str
    subject: Subject
    seconds: list[float]
    raw_seconds: list[float]
    raw: str


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder in *parent* with the link that peers import the harness by; it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="hicache-benchmark-", dir=parent))
    try:
        (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(
    settings: Settings, case: str, operation: str, workload: Workload, subjects: Sequence[str], raw: str = "raw"
) -> list[Row]:
    """Return a row for each of *subjects* after interleaved passes of *operation* over *workload*.

    Args:
        raw: the subject among them whose time is the limit.

    Raises:
        WrongBytes: a subject's reads do not give what was stored.
    """
    workload = settings.sized(workload)
    with ExitStack() as stack:
        opened = _open_all(settings, stack, subjects, workload)
        if operation != "write":
            for name, subject in opened.items():
                subject.write()
                say(f"{case}: {name} holds {workload.objects} objects of {workload.object_nbytes} bytes")
            os.sync()
        seconds = _rounds(settings, opened, operation, f"{case} {workload.object_nbytes} B x{workload.threads}")
        return [
            _row(
                Measured(case, operation, workload, name, subject, seconds[name], seconds[raw], raw),
                settings.provenance,
            )
            for name, subject in opened.items()
        ]


def _open_all(settings: Settings, stack: ExitStack, subjects: Sequence[str], workload: Workload) -> dict[str, Subject]:
    """Return the subjects, ready; a peer that does not work on this machine is left out and said to be."""
    opened: dict[str, Subject] = {}
    for name in subjects:
        try:
            opened[name] = _open(settings, stack, name, workload)
        except SubjectFailed as failure:
            say(f"{name} is left out: {failure}")
            settings.subjects.discard(name)
    return opened


def _open(settings: Settings, stack: ExitStack, name: str, workload: Workload) -> Subject:
    subject = settings.subjects.get(name)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=settings.scratch))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    subject.prepare(replace(workload, folder=str(folder)))
    stack.callback(subject.release)
    return subject


def _rounds(settings: Settings, subjects: dict[str, Subject], operation: str, title: str) -> dict[str, list[float]]:
    """Run one pass that warms up and checks the bytes, then the timed ones; return seconds per subject."""
    names = list(subjects)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(settings.rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            taken = _one_pass(subjects[name], operation)
            is_checked = operation in _READS and number in (0, settings.rounds)
            if is_checked and (wrong := subjects[name].wrong_objects()):
                raise WrongBytes(f"{title}: {name} read {wrong} objects wrong")
            if number:
                seconds[name].append(taken)
        say(f"{title}: round {number}/{settings.rounds}", end="\r")
    say("")
    return seconds


def _one_pass(subject: Subject, operation: str) -> float:
    if operation in _READS:
        subject.clear_memory()
    seconds = subject.run(operation)
    if operation == "write":
        subject.wipe()
    return seconds


def _row(measured: Measured, provenance: Provenance) -> Row:
    workload, seconds = measured.workload, measured.seconds
    p20, p50, p80 = percentiles(seconds)
    return Row(
        case=measured.case,
        operation=measured.operation,
        subject=measured.name,
        version=measured.subject.version,
        object_nbytes=workload.object_nbytes,
        objects=workload.objects,
        batch=workload.batch,
        threads=workload.threads,
        rounds=len(seconds),
        p20_s=p20,
        p50_s=p50,
        p80_s=p80,
        best_s=min(seconds),
        gb_s=None if measured.operation == "exists" else _moved_nbytes(measured) / p50 / 1e9,
        us_per_object=p50 / workload.objects * 1e6,
        share_of_raw=statistics.median(limit / own for limit, own in zip(measured.raw_seconds, seconds, strict=True)),
        raw=measured.raw,
        page_cache=measured.subject.page_cache,
        calls=measured.subject.calls[measured.operation],
        provenance=provenance,
    )


def _moved_nbytes(measured: Measured) -> int:
    """Return the payload of one pass; a ranged one reads half of each object."""
    return measured.workload.nbytes // (2 if measured.operation == "ranged" else 1)


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 20th, 50th and 80th percentile, between neighbours where they fall between."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return tenths[1], tenths[4], tenths[7]


def say(text: str, end: str = "\n") -> None:
    """Show progress on stderr."""
    print(text, end=end, file=sys.stderr, flush=True)
