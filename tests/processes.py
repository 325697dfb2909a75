"""Processes that a test starts: none outlives it, and none keeps it from failing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import AnyStr


@contextmanager
def awaited(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Yield *process*, and wait for it to end; where the block raises it is killed first.

    `Popen` itself would wait for a process that hangs, which a test has just found, and the error would never be seen.
    """
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
