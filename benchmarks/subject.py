"""One thing that is measured: this project, a physical limit or a peer. Standard library only.

A subject runs in the harness (limits, this project) or behind `benchmarks.serve` in a process and an
environment of its own (peers). Both look the same to a case.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum, unique

from benchmarks.workload import Workload

PAGE_CACHE = "warm: every file was written or read moments before"


class SubjectFailed(Exception):
    """The subject does not work, or its process died or answered with an error; the text says which."""


@unique
class Verdict(Enum):
    """What a subject gave for one object that was asked of it."""

    RIGHT = "right bytes"
    WRONG = "wrong bytes"
    MISS = "miss"
    ERROR = "error raised"


class Subject(ABC):
    """Stores and loads the objects of one workload through one implementation.

    Timed methods return seconds of one pass over all objects, batch by batch, measured around the
    calls alone: keys, paths and buffers are made beforehand.

    Attributes:
        version: of the implementation, as its package says it.
        workload_kind: what `prepare` takes.
        page_cache: where the objects are while they are read.
        calls: operation -> the functions that are timed, in the words of the implementation.
    """

    version: str = ""
    workload_kind: type[Workload] = Workload
    page_cache: str = PAGE_CACHE
    calls: dict[str, str]

    @abstractmethod
    def prepare(self, workload: Workload) -> None:
        """Get ready: buffers allocated and touched, store opened on the folder, nothing stored."""

    @abstractmethod
    def write(self) -> float:
        """Store every object; none of them is there."""

    @abstractmethod
    def read(self) -> float:
        """Load every object into memory that is allocated already."""

    def ranged(self) -> float:
        """Load the second half of every object to where `read` puts it.

        Raises:
            NotImplementedError: not measured with this subject.
        """
        raise NotImplementedError

    @abstractmethod
    def exists(self) -> float:
        """Ask for every object whether it is there; all are."""

    @abstractmethod
    def clear_memory(self) -> None:
        """Overwrite what earlier reads left, so that a read that does nothing is found out."""

    @abstractmethod
    def wrong_objects(self) -> int:
        """Return how many objects are not in memory, byte for byte, as the last read should have left them."""

    @abstractmethod
    def wipe(self) -> None:
        """Remove every stored object."""

    @abstractmethod
    def store_some(self, numbers: Sequence[int]) -> None:
        """Store these objects in one call, whatever is there."""

    @abstractmethod
    def fetch_some(self, numbers: Sequence[int]) -> list[Verdict]:
        """Look these objects up and load those that are there in one call, as an engine would."""

    @abstractmethod
    def release(self) -> None:
        """Give back threads and memory; `prepare` may follow. The folder is the harness's to remove."""

    def run(self, operation: str) -> float:
        """Run one timed pass of ``write``, ``read``, ``ranged`` or ``exists``."""
        passes: dict[str, Callable[[], float]] = {
            "write": self.write,
            "read": self.read,
            "ranged": self.ranged,
            "exists": self.exists,
        }
        return passes[operation]()


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that *call* takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
