"""Which copies have ended, and whether every rank has their bytes. Torch-free.

A rank that is alone looks for itself. Where there are more, a thread of each waits for its own copy and agrees with the
others on the result, in the order of submission: so what a scheduler sees as ready has ended on every rank, and
a copy that failed on one has failed on all.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import Protocol

from hicache_storage.engine_integration.controller.pools import CopyJob
from hicache_storage.engine_integration.parallel.agree import Group, agree_all
from hicache_storage.engine_integration.store_tier.acks import AckQueue
from hicache_storage.engine_integration.store_tier.worker import Worker
from hicache_storage.errors import HiCacheError, RankFailure


class EndedCopies(Protocol):
    """The copies of one direction, oldest first. Of the scheduler's thread."""

    def add(self, job: CopyJob) -> None:
        """Take up a copy that was submitted behind all others."""

    def ready(self) -> int:
        """Return how many of the oldest copies `take` need not wait for."""

    def take(self) -> bool:
        """Drop the oldest copy, once it has ended on every rank; return whether every rank has its bytes.

        Raises:
            RankFailure: that cannot be found out: a rank is gone, or the copy does not end. The copy is not dropped.
        """

    def close(self) -> bool:
        """End the thread, if there is one, and forget the copies that were not taken; say whether all have ended here."""


def ended_copies(what: str, group: Group, *, patience_s: float) -> EndedCopies:
    """Return the way in which the ranks of *group* hear of copies.

    Args:
        what: the copies, for messages.
        patience_s: how long a copy of this rank may take once everybody waits for it.
    """
    return _Own() if group.size == 1 else _Agreed(what, group, patience_s)


class _Own:
    def __init__(self) -> None:
        self._jobs: deque[CopyJob] = deque()

    def add(self, job: CopyJob) -> None:
        self._jobs.append(job)

    def ready(self) -> int:
        return sum(1 for _ in takewhile(lambda job: job.done(), self._jobs))

    def take(self) -> bool:
        job = self._jobs.popleft()
        job.wait()
        return job.error is None

    def close(self) -> bool:
        have_ended = all(job.wait() for job in self._jobs)
        self._jobs.clear()
        return have_ended


class _Agreed:
    def __init__(self, what: str, group: Group, patience_s: float) -> None:
        self._what = what
        self._group = group
        self._patience_s = patience_s
        self._jobs: deque[CopyJob] = deque()
        self._results: AckQueue[bool | RankFailure] = AckQueue(what)
        self._lost_to: RankFailure | None = None
        self._worker = Worker(f"hicache-{what}", self._agree, self._lost)

    def add(self, job: CopyJob) -> None:
        self._jobs.append(job)
        self._worker.submit(job)

    def ready(self) -> int:
        return self._results.ready()

    def take(self) -> bool:
        if not self._jobs[0].wait(self._patience_s):
            raise RankFailure(self._what, {self._group.rank: f"the copy has not ended after {self._patience_s:g} s"})
        result = self._lost_to or self._results.wait()
        if isinstance(result, RankFailure):
            self._lost_to = result
            raise RankFailure(result.step, result.reasons) from result
        self._jobs.popleft()
        return result

    def close(self) -> bool:
        self._jobs.clear()
        return self._worker.close(self._patience_s)

    def _agree(self, job: CopyJob) -> None:
        job.wait()
        self._results.put(agree_all(self._group, self._what, lambda: job.error is None))

    def _lost(self, _: CopyJob, error: BaseException) -> None:
        lost = error if isinstance(error, RankFailure) else RankFailure(self._what, {self._group.rank: str(error)})
        self._results.put(lost)


class NotSubmitted:
    """A copy that this rank could not begin: it has failed, and all ranks hear of it as of any other failure."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.layers = _NoLayers(error)

    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> bool:  # noqa: ARG002 - there is nothing to wait for
        return True


class _NoLayers:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def wait(self, layer: int, timeout_s: float | None = None) -> None:  # noqa: ARG002 - it will not arrive
        raise HiCacheError(f"layer {layer} was not loaded: {self._error}") from self._error
