"""L3 to L2: what is there, agreed before reading; what has arrived, agreed while reading.

    scheduler            probe thread            read thread
    probe(op)  ------->  lookup, agree  --+
    take Probed  <------------------------+
    read(op)   ------------------------------->  read a batch, agree  --+
    take Progress(n)  <-----------------------------------------------  +  (again, until last)

Each operation ends with exactly one `Probed`, and if it was read, with exactly one `Progress` that is
the last. Every rank sees the same acknowledgements in the same order. Torch-free.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from hicache_storage import telemetry
from hicache_storage.engine_integration.parallel.agree import Group, agree_mins
from hicache_storage.engine_integration.store_tier.acks import AckQueue
from hicache_storage.engine_integration.store_tier.page_group import PageGroup
from hicache_storage.engine_integration.store_tier.speed import FetchSpeed
from hicache_storage.engine_integration.store_tier.worker import Worker
from hicache_storage.telemetry import Counters

_US_PER_S = 1_000_000


@dataclass(slots=True, eq=False)
class Fetch:
    """One fetch of a run of pages, on one rank.

    Attributes:
        page_hashes: the pages that are wanted, in prefix order.
        prefix: hashes of the pages in front, from the sequence's first one on.
        host_pages: where they go: set by the scheduler before `Prefetcher.read`, one for each page to be read.
            They stay the fetch's until its last acknowledgement was taken.
        stopped: once set, reading ends with the batch that is under way, on every rank alike.
    """

    page_hashes: Sequence[str]
    host_pages: Sequence[int] = ()
    prefix: Sequence[str] = ()
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        """What tells it from any other that runs, the same on every rank: its first page and their number."""
        return f"{self.page_hashes[0][:16]}+{len(self.page_hashes)}"


@dataclass(frozen=True, slots=True)
class Probed:
    """What L3 has of a fetch, the same on every rank.

    Attributes:
        pages: leading pages that every rank found.
        read_s: what reading them is expected to take on the slowest rank; None where that is not known.
    """

    fetch: Fetch
    pages: int
    read_s: float | None

    @property
    def identity(self) -> str:
        """What every rank has taken when it has taken this one."""
        return f"hit {self.fetch.name} {self.pages} {self.read_s}"


@dataclass(frozen=True, slots=True)
class Progress:
    """What has arrived of a fetch, the same on every rank.

    Attributes:
        pages: leading pages that every rank has in its host pages, verified; never fewer than before.
        last: nothing is being written into the fetch's host pages any more, on no rank.
    """

    fetch: Fetch
    pages: int
    last: bool

    @property
    def identity(self) -> str:
        """What every rank has taken when it has taken this one."""
        return f"read {self.fetch.name} {self.pages} {self.last}"


class Prefetcher:
    """Probes and reads on two threads of its own.

    Args:
        pages: where this rank's pages are.
        probe_group, read_group: the ranks that agree; each thread has a group of its own.
        batch_pages: pages read between two agreements.
        patience_s: how long this rank may be late with an acknowledgement that others have.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        pages: PageGroup,
        *,
        probe_group: Group,
        read_group: Group,
        batch_pages: int,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = 0.0,
    ) -> None:
        self.probed: AckQueue[Probed] = AckQueue("L3 hits", rank=probe_group.rank, patience_s=patience_s)
        self.progress: AckQueue[Progress] = AckQueue("L3 reads", rank=read_group.rank, patience_s=patience_s)
        self.speed = FetchSpeed()
        self._pages = pages
        self._probe_group = probe_group
        self._read_group = read_group
        self._batch_pages = batch_pages
        self._counters = counters
        self._clock = clock
        with ExitStack() as undo:
            self._probes = Worker("hicache-probe", self._probe, self._probe_failed)
            undo.callback(self._probes.close)
            self._reads = Worker("hicache-prefetch", self._read, self._read_failed)
            undo.pop_all()
        self._arrived: dict[Fetch, int] = {}

    def probe(self, fetch: Fetch) -> None:
        """Ask L3 for *fetch*; a `Probed` follows."""
        self._probes.submit(fetch)

    def read(self, fetch: Fetch) -> None:
        """Read ``len(fetch.host_pages)`` pages of *fetch*; `Progress` follows, the last of it marked."""
        self._reads.submit(fetch)

    def close(self, timeout_s: float | None = None) -> bool:
        """Finish what was submitted and end the threads; return whether they ended within *timeout_s* each."""
        return all([self._probes.close(timeout_s), self._reads.close(timeout_s)])

    def _probe(self, fetch: Fetch) -> None:
        def local() -> tuple[int, int]:
            found = 0 if fetch.stopped.is_set() else self._pages.lookup(fetch.page_hashes)
            return found, -int((self.speed.expected_s(found) or 0.0) * _US_PER_S)

        # The smallest of the negated times is the slowest rank's; 0 if no rank has measured anything yet.
        found, negated_us = agree_mins(self._probe_group, "L3 hit", local, 2)
        self.probed.put(Probed(fetch, found, -negated_us / _US_PER_S if negated_us else None))

    def _probe_failed(self, fetch: Fetch, error: BaseException) -> None:
        self._counters.add(f"{telemetry.PREFETCH_FAILED}.{type(error).__name__}")
        self.probed.put(Probed(fetch, 0, None))

    def _read(self, fetch: Fetch) -> None:
        wanted = len(fetch.host_pages)
        self._arrived[fetch] = arrived = 0
        while True:
            stop = min(arrived + self._batch_pages, wanted)
            arrived, going_on = agree_mins(self._read_group, "L3 read", partial(self._batch, fetch, arrived, stop), 2)
            last = arrived < stop or stop == wanted or not going_on
            self._arrived[fetch] = arrived
            if last:
                del self._arrived[fetch]
            self.progress.put(Progress(fetch, arrived, last))
            if last:
                return

    def _batch(self, fetch: Fetch, start: int, stop: int) -> tuple[int, int]:
        """Read pages ``[start, stop)`` and return (pages there from the start on, 1 to go on or 0)."""
        if fetch.stopped.is_set():
            return start, 0
        began = self._clock()
        # The whole prefix counts as used once, with its last pages, and not again for every batch.
        front = (*fetch.prefix, *fetch.page_hashes[:start]) if stop == len(fetch.host_pages) else ()
        read = self._pages.read(fetch.page_hashes[start:stop], fetch.host_pages[start:stop], front)
        if read == stop - start:  # of a batch that ended early nobody knows what the time went to
            self.speed.add(read, self._clock() - began)
        return start + read, int(not fetch.stopped.is_set())

    def _read_failed(self, fetch: Fetch, error: BaseException) -> None:
        self._counters.add(f"{telemetry.PREFETCH_FAILED}.{type(error).__name__}")
        self.progress.put(Progress(fetch, self._arrived.pop(fetch, 0), last=True))
