"""When objects were used: the times that eviction goes by. They are the files' own, so they outlive every process.

Each time is later than the one before by `STEP_NS`, also where the clock is coarse or was set back, so what one
instance uses, one after the other, is evicted in that order by any other. Filesystems that keep times to a
microsecond or better keep it; on one that keeps whole seconds, what was used within one of them has no order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

STEP_NS = 1000


class UseTimes:
    """Marks files as used, for one store instance.

    No lock: threads that meet here may be given equal times, and what is used at once has no order anyway.
    """

    def __init__(self) -> None:
        self._last_ns = 0

    def mark(self, file: int | str) -> None:
        """The file, a path or a descriptor, was used now."""
        _set_time(file, self._next_ns(1))

    def mark_in_order(self, paths: Sequence[str]) -> None:
        """Every file was used now, each later than the one before it in *paths*."""
        first_ns = self._next_ns(len(paths))
        for place, path in enumerate(paths):
            _set_time(path, first_ns + place * STEP_NS)

    def _next_ns(self, count: int) -> int:
        """Return the first of *count* times, `STEP_NS` apart and later than all before."""
        # The kernel's own stamps are several milliseconds coarse.
        first_ns = max(time.time_ns(), self._last_ns + STEP_NS)
        self._last_ns = first_ns + (count - 1) * STEP_NS
        return first_ns


def _set_time(file: int | str, used_ns: int) -> None:
    try:
        os.utime(file, ns=(used_ns, used_ns))
    except OSError:
        # Gone meanwhile, or another user's: it stays as old as it is, which costs a hit at worst.
        return
