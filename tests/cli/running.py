"""What a command leaves behind, and how to start one as a user's shell does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[2]
HICACHE = str(Path(sys.executable).parent / "hicache")


@dataclass(frozen=True, slots=True)
class Ended:
    """What one command left: its exit status and what it printed."""

    status: int
    out: str
    err: str

    def json(self) -> dict[str, object]:
        """Return stdout, which holds one JSON object and nothing else."""
        document: dict[str, object] = json.loads(self.out)
        return document


Hicache: TypeAlias = Callable[..., Ended]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process that can import `tests` and buffers its output, as it does for users."""
    return dict(os.environ) | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""} | dict(extra or {})


def run_process(*arguments: str, env: Mapping[str, str] | None = None) -> Ended:
    """Run the installed ``hicache ARGUMENTS``."""
    command = [HICACHE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(env), timeout=60, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)
