"""The physical limit: open, pwritev or preadv, close, from as many threads as the others have."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.subject import timed
from benchmarks.subjects.striped import Striped
from benchmarks.workload import Workload


class RawFiles(Striped):
    """One file per object in one flat folder; no checksum, no rename, no eviction."""

    def __init__(self) -> None:
        self.calls = {
            "write": "os.open(O_CREAT|O_EXCL), os.pwritev, os.close",
            "read": "os.open, os.preadv, os.close",
            "ranged": "os.open, os.preadv of half, os.close",
            "exists": "os.stat",
        }

    def prepare(self, workload: Workload) -> None:
        super().prepare(workload)
        folder = Path(workload.folder)
        self._paths = [str(folder / f"{workload.page_hash(number)}.raw") for number in range(workload.objects)]

    def exists(self) -> float:
        return timed(lambda: [os.stat(path) for path in self._paths])  # noqa: PTH116 - the plain call is the limit

    def wipe(self) -> None:
        for path in self._paths:
            Path(path).unlink(missing_ok=True)

    def _write(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            file = os.open(self._paths[number], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            os.pwritev(file, [self._source.views[number]], 0)
            os.close(file)

    def _read(self, numbers: Sequence[int], first_byte: int) -> None:
        for number in numbers:
            file = os.open(self._paths[number], os.O_RDONLY)
            os.preadv(file, [self._target.views[number][first_byte:]], first_byte)
            os.close(file)
