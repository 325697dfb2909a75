"""Temporary files: names that no two writes share, and which of them nobody will finish.

A name is ``host.pid.start.token.nbytes.number``: who writes, and what the books reserved for it.
*host* stands for one boot of one machine and one process namespace, within which a pid means one
process at a time; *start* tells that process from an earlier one with the same pid.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

_START_FIELD = 19
"""Index of the start time in ``/proc/PID/stat`` behind the process name; the state comes first."""

_UNKNOWN_START = "0"

_NO_LONGER_RUNNING = frozenset({"Z", "X"})


@dataclass(frozen=True, slots=True)
class Temp:
    """What a temporary file's name says."""

    host: str
    pid: int
    start: str
    nbytes: int

    @classmethod
    def parse(cls, name: str) -> Temp | None:
        """Return what *name* says; None if this backend did not make it."""
        fields = name.split(".")
        if len(fields) != 6 or not (fields[1].isdecimal() and fields[4].isdecimal()):
            return None
        return cls(fields[0], int(fields[1]), fields[2], int(fields[4]))


class TempNames:
    """Names of one store instance's temporary files, unique per call, also across `fork`."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(4)
        self._number = itertools.count()
        self._owner = (0, "")

    def new(self, nbytes: int) -> str:
        """Return a name for a file for which *nbytes* are reserved. Its length does not depend on any key."""
        pid, owner = self._owner
        if pid != os.getpid():
            pid = os.getpid()
            owner = f"{host_id()}.{pid}.{_start_of(pid)}.{self._token}"
            self._owner = (pid, owner)
        return f"{owner}.{nbytes}.{next(self._number)}"


def orphans(folder: str, foreign_age_s: float) -> Iterator[str]:
    """Yield the names in *folder* whose writer is gone.

    A writer on this host is gone when its process is; one elsewhere, when its file was not written
    to for *foreign_age_s*. A file of a live writer on this host is never among them.
    """
    here, now_s = host_id(), time.time()
    with os.scandir(folder) as entries:
        for entry in entries:
            temp = Temp.parse(entry.name)
            with contextlib.suppress(FileNotFoundError):
                if temp is not None and temp.host == here:
                    gone = not _is_running(temp)
                else:
                    gone = now_s - entry.stat(follow_symlinks=False).st_mtime > foreign_age_s
                if gone:
                    yield entry.name


def host_id() -> str:
    """Return what identifies this boot of this machine and this process namespace."""
    parts = [os.uname().nodename]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return xxhash.xxh3_64_hexdigest("\0".join(parts).encode())


def _is_running(temp: Temp) -> bool:
    fields = _stat_fields(temp.pid)
    if fields:
        return fields[0] not in _NO_LONGER_RUNNING and temp.start in (fields[_START_FIELD], _UNKNOWN_START)
    try:
        os.kill(temp.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it exists, and belongs to somebody else
    return True


def _start_of(pid: int) -> str:
    fields = _stat_fields(pid)
    return fields[_START_FIELD] if fields else _UNKNOWN_START


def _stat_fields(pid: int) -> list[str]:
    """Return the fields behind the process name; none if there is no such process or it is hidden from us."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
