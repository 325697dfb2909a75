"""What a reader gets when bytes on disk are not those that were written. Every fault is really made.

Four objects are stored, the second is damaged, all four are looked up and read in one call, the
damaged one is stored again and read once more. The torn write is made by a second process, which the
kernel kills in the middle of the second object.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.rows import Finding
from benchmarks.runner import Settings, say
from benchmarks.subject import SubjectFailed, Verdict
from benchmarks.subjects.factory import open_process, subjects_of
from benchmarks.subjects.process import ProcessSubject
from benchmarks.workload import Workload

_OBJECTS = 4
_DAMAGED = 1
_OTHER = 3

Files = dict[int, Path]
"""Object number -> the file that holds it."""


def _flip_bit(files: Files, nbytes: int) -> None:
    with files[_DAMAGED].open("r+b") as file:
        file.seek(nbytes // 3)
        (byte,) = file.read(1)
        file.seek(nbytes // 3)
        file.write(bytes([byte ^ 0x10]))


def _truncate(files: Files, nbytes: int) -> None:
    with files[_DAMAGED].open("r+b") as file:
        file.truncate(nbytes // 2)


def _append(files: Files, nbytes: int) -> None:
    with files[_DAMAGED].open("ab") as file:
        file.write(b"\x5a" * min(4096, nbytes))


def _lose_tail(files: Files, nbytes: int) -> None:
    """Leave the size and zero the second half, as a power cut does to a file that was renamed before it was flushed."""
    with files[_DAMAGED].open("r+b") as file:
        file.seek(nbytes // 2)
        file.write(bytes(nbytes - nbytes // 2))


def _copy_over(files: Files, _: int) -> None:
    shutil.copyfile(files[_OTHER], files[_DAMAGED])


TORN = "writer killed in mid-write"

FAULTS: dict[str, Callable[[Files, int], None]] = {
    "bit flip": _flip_bit,
    "truncated": _truncate,
    "too long": _append,
    "second half zero": _lose_tail,
    "another key's object": _copy_over,
}


def corruption(settings: Settings) -> list[Finding]:
    peers = [name for name in subjects_of(settings.peers) if name != "sglang_v2"]
    workload = replace(settings.sized(Workload(folder="", objects=_OBJECTS, batch=_OBJECTS)), objects=_OBJECTS)
    findings = _findings(settings, "ours", workload)
    for subject in peers:
        try:
            findings += _findings(settings, subject, workload)
        except SubjectFailed as failure:
            say(f"{subject} is left out: {failure}")
    return findings


def _findings(settings: Settings, subject: str, workload: Workload) -> list[Finding]:
    folder = Path(tempfile.mkdtemp(prefix=f"{subject}-", dir=settings.scratch))
    workload = replace(workload, folder=str(folder))
    say(f"corruption: {subject}")
    try:
        reader = _start(settings, subject, workload)
        try:
            found = []
            for fault, damage in FAULTS.items():
                damage(_store_each(reader, workload), workload.object_nbytes)
                found.append(_observe(settings, subject, fault, workload, reader))
            _tear(settings, subject, workload)
            found.append(_observe(settings, subject, TORN, workload, reader))
        finally:
            reader.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _observe(settings: Settings, subject: str, fault: str, workload: Workload, reader: ProcessSubject) -> Finding:
    """Read all objects, store the damaged one again, read it again, and leave nothing behind."""
    verdicts = reader.fetch_some(range(_OBJECTS))
    reader.store_some([_DAMAGED])
    (again,) = reader.fetch_some([_DAMAGED])
    reader.wipe()
    others = verdicts[:_DAMAGED] + verdicts[_DAMAGED + 1 :]
    return Finding(
        case="corruption",
        fault=fault,
        subject=subject,
        version=reader.version,
        object_nbytes=workload.object_nbytes,
        read=verdicts[_DAMAGED].value,
        neighbours=others.count(Verdict.RIGHT),
        healed=again is Verdict.RIGHT,
        provenance=settings.provenance,
    )


def _start(settings: Settings, subject: str, workload: Workload) -> ProcessSubject:
    process = open_process(subject, settings.scratch)
    try:
        process.prepare(workload)
    except SubjectFailed:
        process.close()
        raise
    return process


def _store_each(writer: ProcessSubject, workload: Workload) -> Files:
    """Store the objects one after the other; the large file that appears is the object's."""
    files: Files = {}
    for number in range(_OBJECTS):
        before = _object_files(workload)
        writer.store_some([number])
        (files[number],) = _object_files(workload) - before
    return files


def _object_files(workload: Workload) -> set[Path]:
    files = (path for path in Path(workload.folder).rglob("*") if path.is_file())
    return {path for path in files if path.stat().st_size >= workload.object_nbytes}


def _tear(settings: Settings, subject: str, workload: Workload) -> None:
    """Store three objects; the kernel kills the writer when the fourth object's file is half written.

    A writer that notices the short write and cleans up survives; that is its answer.
    """
    writer = _start(settings, subject, workload)
    try:
        writer.store_some([number for number in range(_OBJECTS) if number != _DAMAGED])
        writer.die_at_file_size(workload.object_nbytes // 2)
        writer.store_some([_DAMAGED])
    except SubjectFailed as death:
        say(f"corruption: {subject}: {death}")
    finally:
        writer.close()
