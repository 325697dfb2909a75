"""Compares what the ranks of a deployment do, on a thread of its own, while they do it.

    scheduler's thread      recorded calls -> entries -> queue           never waits
    checker's thread        how many entries has every rank? (MIN)       waits for the slowest rank
                            one digest for each of them, of every rank
                            unequal: everybody's entry, told on every rank

The n-th entry of a rank is compared with the n-th of the others whenever the last of them has come to it, so
ranks and pipeline stages may be apart in time as far as they like, within the deadline of the group.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Self

from hicache_storage.engine_integration.consensus.divergence import Differs, Divergence, what_differs
from hicache_storage.engine_integration.consensus.entry import ENTRY_NBYTES, Entry, Rank
from hicache_storage.engine_integration.consensus.options import ConsensusOptions
from hicache_storage.engine_integration.consensus.rank_log import Header, RankLog
from hicache_storage.engine_integration.consensus.recorder import Recorder, recording
from hicache_storage.engine_integration.parallel.agree import Group, agree_each, agree_min, agree_same
from hicache_storage.errors import RankFailure
from hicache_storage.layout import Topology

_BATCH = 256
_PAUSE_S = 0.01
"""Between two comparisons. Each one is two collectives, whatever its number of entries: the scheduler needs the time."""

_MAX_REPORTS = 8
_MS_PER_S = 1000

_log = logging.getLogger(__name__)


class Checker:
    """One rank's part of the comparison. To make one is a collective, and so is its end.

    Args:
        group: every rank of *topology*, counted stage by stage; for the checker alone. Its deadline is how long a rank
            waits for another one's next entry before that counts as a divergence.
        options: on every rank the same *on_divergence*.
        on_stop: under ``on_divergence=stop``, called once on the checker's thread with what each next recorded call
            raises: a scheduler that waits for another rank may not come to one.

    Attributes:
        divergences: what was found, the first one first. It ends with the first one after which the numbers of the
            entries mean nothing any more, or with the eighth.

    Raises:
        RankFailure: a rank did not come, counts other ranks, or would do something else at a divergence.
    """

    def __init__(
        self,
        group: Group,
        topology: Topology,
        options: ConsensusOptions,
        *,
        on_stop: Callable[[RankFailure], None] = lambda _: None,
    ) -> None:
        self.divergences: list[Divergence] = []
        self._group = group
        self._options = options
        self._on_stop = on_stop
        self._ranks = [Rank(pp_rank, tp_rank) for tp_rank, pp_rank in topology.ranks()]
        agree_same(group, "rank consensus ranks", lambda: len(self._ranks))
        agree_same(group, "rank consensus stops", lambda: int(options.on_divergence == "stop"))
        # The first rank's clock gives the run its name on all of them.
        run = agree_each(group, "rank consensus run", lambda: (int(time.time() * _MS_PER_S),), 1)[0][0]
        rank = self._ranks[group.rank]
        header = Header(run, rank.pp_rank, rank.tp_rank, topology.pp, topology.tp)
        folder = options.log_folder
        self.log = RankLog(folder, header, options.log_nbytes) if folder is not None else None
        self.recorder = Recorder([self.log.add] if self.log is not None else [])
        self._is_closed = threading.Event()
        self._pending: list[Entry] = []
        self._digests: list[int] = []  # of those entries
        self._before: deque[Entry] = deque(maxlen=options.history)
        self._thread = threading.Thread(target=self._run, name="hicache-consensus", daemon=True)
        self._thread.start()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Have the calling thread's decorated calls recorded: it is the rank's scheduler, until it leaves.

        Under ``on_divergence=stop`` a decorated call raises `RankFailure` once a divergence was found.
        """
        with recording(self.recorder):
            yield

    @property
    def failure(self) -> RankFailure | None:
        """What the ranks parted at first, as an error.

        None if they have not, or if a rank was not there any more or has raised: it says itself why.
        """
        first = next(iter(self.divergences), None)
        if first is None or any(entry is None or entry.event in ("raise", "end") for entry in first.entries.values()):
            return None
        return first.failure(self._ranks)

    def close(self, timeout_s: float | None = None) -> None:
        """Compare what is left, then end. Blocks until every rank has closed, or the group's deadline has passed.

        Args:
            timeout_s: blocks no longer than this, and as long once more where the log's device hangs: for a rank that
                fails while others may wait for it. The rest is compared as long as the process lives.
        """
        if self._is_closed.is_set():
            return
        self.recorder.record("end")
        self._is_closed.set()
        self._thread.join(timeout_s)
        if self.log is not None:
            self.log.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while self._compare():
                pass
        except RankFailure as failure:
            self._absent(failure)
        except Exception:  # noqa: BLE001 - a fault of the checker must not become one of the engine
            _log.exception("rank_consensus.fault rank=%s", self._ranks[self._group.rank])
        self.recorder.is_compared = False

    def _compare(self) -> bool:
        """Compare some entries; False if there will be no more."""
        try:
            self._collect()
        except Exception:  # noqa: BLE001 - whoever waits for this rank must hear that it compares no more
            _log.exception("rank_consensus.fault rank=%s", self._ranks[self._group.rank])
            self._forget(len(self._pending))
        count = agree_min(self._group, "rank consensus length", lambda: len(self._digests))
        if not count:
            _log.error("rank_consensus.given_up rank=%s", self._ranks[self._group.rank])
            return False
        digests = agree_each(self._group, "rank consensus", lambda: self._digests[:count], count)
        equal = next((at for at, theirs in enumerate(zip(*digests, strict=True)) if len(set(theirs)) > 1), count)
        self._before += self._pending[:equal]
        is_end = equal > 0 and self._pending[equal - 1].event == "end"
        self._forget(equal)
        return not is_end if equal == count else self._diverged(self._pending[0])

    def _collect(self) -> None:
        """Wait for an entry and take as many more as there are; there stays none once this rank has given up."""
        if not self._pending:
            self._take(self.recorder.waiting.get())
        if self.recorder.waiting.qsize() < _BATCH:
            self._is_closed.wait(_PAUSE_S)
        for _ in range(min(self.recorder.waiting.qsize(), _BATCH - len(self._pending))):
            self._take(self.recorder.waiting.get())

    def _take(self, entry: Entry | None) -> None:
        if entry is None:
            self.recorder.waiting.put(None)  # found again once nothing else is left
        else:
            self._pending.append(entry)
            self._digests.append(entry.digest())

    def _forget(self, count: int) -> None:
        del self._pending[:count], self._digests[:count]

    def _diverged(self, mine: Entry) -> bool:
        """Tell everybody's entry in place of *mine*, the first; False if there is nothing more to be compared."""
        words = agree_each(self._group, "rank consensus entry", mine.packed, ENTRY_NBYTES // 8)
        entries = {rank: Entry.unpacked(mine.number, theirs) for rank, theirs in zip(self._ranks, words, strict=True)}
        differs = what_differs(entries.values()) or Differs.RESULTS
        self._tell(Divergence(mine.number, differs, entries, tuple(self._before)))
        self._before.clear()  # a further one is told with what came in between
        self._before.append(mine)
        self._forget(1)
        return differs is not Differs.ORDER and len(self.divergences) < _MAX_REPORTS

    def _absent(self, failure: RankFailure) -> None:
        """Tell that a rank did not come to the next entry; which one is known where the group can tell."""
        if not self._pending:  # this rank has given up itself
            return
        mine = self._pending[0]
        absent = failure.reasons.keys() - {self._group.rank}
        entries = {
            rank: None if index in absent else mine
            for index, rank in enumerate(self._ranks)
            if index in absent or index == self._group.rank
        }
        _log.error("rank_consensus.lost rank=%s entry=%d error=%s", self._ranks[self._group.rank], mine.number, failure)
        self._tell(Divergence(mine.number, Differs.LENGTH, entries, tuple(self._before)))

    def _tell(self, divergence: Divergence) -> None:
        self.divergences.append(divergence)
        _log.critical("rank=%s %s", self._ranks[self._group.rank], divergence)
        if self._options.on_divergence == "stop" and self.recorder.failure is None:
            self.recorder.failure = partial(divergence.failure, self._ranks)
            self._on_stop(self.recorder.failure())
