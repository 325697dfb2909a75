"""Where a page's bytes lie: in one place, or in several runs of a larger memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

from hicache_storage.errors import LayoutError


class PageRuns:
    """Offsets and lengths of the runs that are, one behind the other, a page's bytes in page_unified order.

    Attributes:
        nbytes: of all runs together.
        stop: where the run that reaches furthest ends.
    """

    __slots__ = ("_runs", "_starts", "nbytes", "stop")

    def __init__(self, runs: Sequence[tuple[int, int]]) -> None:
        if any(offset < 0 or length < 1 for offset, length in runs):
            raise LayoutError("a run of a page begins at 0 or later and is not empty")
        self._runs = tuple(runs)
        self._starts = list(accumulate((length for _, length in runs), initial=0))
        self.nbytes = self._starts[-1]
        self.stop = max((offset + length for offset, length in runs), default=0)

    def __len__(self) -> int:
        return len(self._runs)

    def span(self, offset: int, nbytes: int) -> Sequence[tuple[int, int]]:
        """Return the runs that are the page's bytes ``[offset, offset + nbytes)``."""
        if nbytes == self.nbytes:
            return self._runs
        index = bisect_right(self._starts, offset) - 1
        within = offset - self._starts[index]
        found: list[tuple[int, int]] = []
        while nbytes:
            start, length = self._runs[index]
            taken = min(length - within, nbytes)
            found.append((start + within, taken))
            nbytes -= taken
            index, within = index + 1, 0
        return found


class ScatteredPage:
    """A page in several runs of *memory*; owns nothing.

    Args:
        memory: flat bytes.
        runs: where the runs begin, counted from *start*.
        start: the place in *memory* that the runs count from.

    Raises:
        LayoutError: a run ends behind the memory.
    """

    __slots__ = ("_memory", "_runs", "_start", "nbytes", "readonly")

    def __init__(self, memory: memoryview, runs: PageRuns, start: int = 0) -> None:
        if start < 0 or start + runs.stop > memory.nbytes:
            raise LayoutError(f"a page from {start} to {start + runs.stop} is not in a memory of {memory.nbytes} bytes")
        self._memory = memory
        self._runs = runs
        self._start = start
        self.nbytes = runs.nbytes
        self.readonly = memory.readonly

    def parts(self, offset: int, nbytes: int) -> tuple[memoryview, ...]:
        """Return the memory of the page's bytes ``[offset, offset + nbytes)``, in their order."""
        memory, start = self._memory, self._start
        return tuple(memory[start + at : start + at + length] for at, length in self._runs.span(offset, nbytes))


Page: TypeAlias = memoryview | ScatteredPage


def parts_of(page: Page, offset: int, nbytes: int) -> tuple[memoryview, ...]:
    """Return the memory of a page's bytes ``[offset, offset + nbytes)``, in their order."""
    if isinstance(page, ScatteredPage):
        return page.parts(offset, nbytes)
    return (page[offset : offset + nbytes],)
