"""Where and of what a measurement was taken: enough to repeat it, nothing that names a person or a host."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TMPFS = "tmpfs"


@dataclass(frozen=True, slots=True)
class Provenance:
    """The part of a row that is the same for a whole run.

    Attributes:
        commit: short hash; ``+`` behind it = the working tree differs; ``none`` = no commit.
        load1: load average over the minute before the run.
        noisy: other work took more than a fifth of a core per core then: read the figures with care.
    """

    commit: str
    cpu: str
    cores: int
    python: str
    torch: str
    filesystem: str
    load1: float
    noisy: bool
    date: str
    command: str

    @classmethod
    def here(cls, folder: Path, command: str) -> Provenance:
        """Describe this machine, the filesystem of *folder* and the state of the repository."""
        load1 = os.getloadavg()[0]
        cores = os.cpu_count() or 1
        return cls(
            commit=_commit(),
            cpu=_cpu_model(),
            cores=cores,
            python=platform.python_version(),
            torch=_version("torch"),
            filesystem=filesystem_of(folder),
            load1=round(load1, 2),
            noisy=load1 > 0.2 * cores,
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            command=command,
        )


def filesystem_of(folder: Path) -> str:
    """Return the type of the filesystem that holds *folder*, e.g. ``ext4``."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, filesystem, *_ = line.split()
        if folder.resolve().is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, filesystem
    return kind


def check_folder(folder: Path, *, allow_tmpfs: bool) -> None:
    """Refuse memory that poses as a disk.

    Raises:
        ValueError: *folder* is on tmpfs and that was not asked for.
    """
    if filesystem_of(folder) == _TMPFS and not allow_tmpfs:
        raise ValueError(f"{folder} is on tmpfs; choose --folder on a disk, or say --tmpfs")


def _commit() -> str:
    head = _git("rev-parse", "--short", "HEAD")
    if not head:
        return "none"
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
