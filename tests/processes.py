"""Processes that a test starts: none outlives it, and none keeps it from failing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import AnyStr

from hicache_storage.watchdog import watchdog

_LIMIT_S = 240.0
"""Less than pytest gives a test, which ends the whole run: whoever reads what the process says reads its end before."""


@contextmanager
def awaited(process: subprocess.Popen[AnyStr], limit_s: float = _LIMIT_S) -> Iterator[subprocess.Popen[AnyStr]]:
    """Yield *process*, and wait for it to end; where the block raises, or after *limit_s*, it is killed.

    `Popen` itself would wait for a process that hangs, which a test has just found, and the error would never be seen.
    """
    with watchdog(limit_s, process.kill), process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
