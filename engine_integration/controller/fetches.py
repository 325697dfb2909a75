"""Prefetches of requests: from L3 into host pages that the tree takes as they arrive. Torch-free.

    arrive --reserve budget--> PROBING --agreed hit--> allocate host pages --> READING --last--> DONE
       |                          |                                               |
       declined: too short,       declined: hit too short, not worth it,          short: the rest is freed
       budget used up             no room on the host

What has arrived on every rank is in the tree after the acknowledgement was taken, whatever became of the
request meanwhile: a request that was aborted, or went on without, leaves its pages to the next one. Budget
and host pages that the tree did not take are returned exactly once, when the state becomes DONE.
"""

from __future__ import annotations

from collections.abc import Callable

from hicache_storage import telemetry
from hicache_storage.engine_integration.controller.host_room import HostRoom
from hicache_storage.engine_integration.controller.request import FetchState, RequestFetch
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.parallel.pp import StepSync
from hicache_storage.engine_integration.radix import Key, Match, RadixTree, Tier
from hicache_storage.engine_integration.store_tier.budget import PageBudget
from hicache_storage.engine_integration.store_tier.prefetch import Fetch, Prefetcher, Probed, Progress
from hicache_storage.errors import InvariantError
from hicache_storage.layout import packed_page_hashes
from hicache_storage.telemetry import Counters

_TRY_AGAIN = 8
"""A store that was too slow is asked anyway once in so many times: only a read tells that it has become faster."""


class Fetches:
    """Every running prefetch of one rank's scheduler.

    Args:
        sync: hears of everything that is applied.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        prefetcher: Prefetcher,
        tree: RadixTree,
        room: HostRoom,
        options: TierOptions,
        *,
        sync: StepSync,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self.budget = PageBudget(int(room.slots.capacity * options.prefetch_host_fraction))
        self._prefetcher = prefetcher
        self._tree = tree
        self._room = room
        self._options = options
        self._sync = sync
        self._counters = counters
        self._clock = clock
        self._running: dict[Fetch, RequestFetch] = {}
        self._passed_over = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    def held_pages(self) -> list[int]:
        """Return the host pages that fetches hold and the tree does not."""
        return [page for one in self._running.values() for page in one.host_pages[one.inserted :]]

    def begin(self, key: Key, match: Match) -> RequestFetch | None:
        """Begin to fetch what of *key* is behind *match*; None if it is not worth asking for."""
        first = match.num_pages
        wanted = key.num_pages - first
        if wanted <= 0 or not self._is_long_enough(wanted):
            self._counters.add(telemetry.PREFETCH_DECLINED_SHORT)
            return None
        # The start of a long prompt is worth as much as a short one.
        wanted = min(wanted, self.budget.free)
        if not wanted or not self._is_long_enough(wanted) or not self.budget.acquire(wanted):
            self._counters.add(telemetry.PREFETCH_DECLINED_BUDGET)
            return None
        key = key.first(first + wanted)
        anchor = match.last_node if match.last_node.host.pages is not None else None
        if anchor is not None:
            self._tree.lock(anchor, Tier.HOST)
        prior = match.last_node.page_hashes()[-1] if first else key.seed
        hashes = packed_page_hashes(key.ids[first * key.page_nbytes :], self._tree.page_tokens, prior=prior)
        fetch = Fetch(hashes, prefix=self._tree.page_hashes(match.last_node) if first else ())
        running = RequestFetch(key, first, fetch, wanted, anchor)
        self._running[fetch] = running
        self._prefetcher.probe(fetch)
        return running

    def stop(self, running: RequestFetch) -> None:
        """End *running* with what is under way. Every rank calls this at the same point of its schedule."""
        running.fetch.stopped.set()

    def ready(self) -> tuple[int, int]:
        return self._prefetcher.probed.ready(), self._prefetcher.progress.ready()

    def take(self, probed: int, progress: int) -> None:
        """Apply as many acknowledgements of probes and of reads, waiting for those that are not there yet.

        Raises:
            RankFailure: one does not come.
        """
        for answer in self._prefetcher.probed.take(probed):
            self._start_reading(answer)
        for arrival in self._prefetcher.progress.take(progress):
            self._arrived(arrival)

    def settle(self) -> bool:
        """Wait until nothing is being fetched; say whether something was."""
        had = bool(self._running)
        while self._running:
            if any(one.state is FetchState.PROBING for one in self._running.values()):
                self._start_reading(self._prefetcher.probed.wait())
            else:
                self._arrived(self._prefetcher.progress.wait())
        return had

    def check(self) -> None:
        """Raise `InvariantError` unless the budget is what the running fetches hold."""
        reserved = sum(one.reserved for one in self._running.values())
        if self.budget.held != reserved:
            raise InvariantError(f"{self.budget.held} pages of budget held, running fetches have {reserved}")

    def close(self) -> None:
        """Stop everything, end the threads and return all that is held."""
        for running in self._running.values():
            self.stop(running)
        self._prefetcher.close()
        self.take(*self.ready())
        for running in list(self._running.values()):
            # Its probe was answered above, after the threads had ended, so nothing reads for it.
            self._end(running)

    def _is_long_enough(self, pages: int) -> bool:
        return pages * self._tree.page_tokens >= self._options.prefetch_threshold_tokens

    def _start_reading(self, answer: Probed) -> None:
        running = self._running[answer.fetch]
        self._sync.took(answer.identity)
        if running.fetch.stopped.is_set() or not self._is_worth_it(answer):
            self._end(running)
            return
        pages = self._room.allocate_most(answer.pages)
        if not self._is_long_enough(len(pages)) or not pages:
            self._room.slots.free(pages)
            self._counters.add(telemetry.PREFETCH_DECLINED_ROOM)
            self._end(running)
            return
        self.budget.release(running.reserved - len(pages))
        running.reserved = len(pages)
        running.host_pages = pages
        running.fetch.host_pages = tuple(pages)
        running.state = FetchState.READING
        self._prefetcher.read(running.fetch)

    def _is_worth_it(self, answer: Probed) -> bool:
        if not answer.pages or not self._is_long_enough(answer.pages):
            self._counters.add(telemetry.PREFETCH_MISSED)
            return False
        speed = self._options.prefill_tokens_per_s
        if self._options.fetch_or_recompute and speed is not None and answer.read_s is not None:
            is_faster = answer.read_s < answer.pages * self._tree.page_tokens / speed
            if is_faster:
                return True
            self._passed_over += 1
            if self._passed_over % _TRY_AGAIN:
                self._counters.add(telemetry.PREFETCH_DECLINED_SLOW)
                return False
        return True

    def _arrived(self, arrival: Progress) -> None:
        running = self._running[arrival.fetch]
        self._sync.took(arrival.identity)
        fresh = running.host_pages[running.inserted : arrival.pages]
        if fresh:
            start = running.first_page + running.inserted
            result = self._tree.insert_host(
                running.key.first(start + len(fresh)), fresh, self._tree.books.now, first_page=start
            )
            self._room.slots.free(result.unused)
            running.inserted = arrival.pages
            running.arrived += result.num_new
            self._counters.add(telemetry.PAGES_PREFETCHED, result.num_new)
        if arrival.last:
            self._end(running)

    def _end(self, running: RequestFetch) -> None:
        del self._running[running.fetch]
        self._room.slots.free(running.host_pages[running.inserted :])
        self.budget.release(running.reserved)
        if running.anchor is not None:
            self._tree.unlock(running.anchor, Tier.HOST)
        running.state = FetchState.DONE
