"""L3 to L2 on several ranks: what is agreed, in which order, and that nothing ends a thread."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hicache_storage.engine_integration.parallel.agree import Group, SingleRank
from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.engine_integration.store_tier.prefetch import Fetch, Prefetcher, Probed, Progress
from hicache_storage.telemetry import Counters
from tests.engine_integration.store_tier.pages import PATIENCE_S, Gate, ScriptedPages

HASHES = [f"page{number}" for number in range(6)]


class Rank:
    """One rank's prefetcher over scripted pages."""

    def __init__(self, pages: ScriptedPages, probe: Group, read: Group, batch_pages: int = 2) -> None:
        self.pages = pages
        self.counters = Counters()
        self.prefetcher = Prefetcher(
            pages.group(), probe_group=probe, read_group=read, batch_pages=batch_pages, counters=self.counters
        )

    def probe(self, hashes: Sequence[str] = HASHES) -> Fetch:
        fetch = Fetch(hashes)
        self.prefetcher.probe(fetch)
        return fetch

    def read(self, pages: int = len(HASHES)) -> Fetch:
        fetch = Fetch(HASHES, range(pages))
        self.prefetcher.read(fetch)
        return fetch

    def end(self) -> tuple[list[Probed], list[Progress]]:
        """End the threads, which acknowledge everything first, and return the acknowledgements."""
        assert self.prefetcher.close(PATIENCE_S)
        probed, progress = self.prefetcher.probed, self.prefetcher.progress
        return probed.take(probed.ready()), progress.take(progress.ready())


def ranks_over(*pages: ScriptedPages, timeout_s: float = PATIENCE_S) -> list[Rank]:
    probes = ThreadGroup.of(len(pages), timeout_s=timeout_s)
    reads = ThreadGroup.of(len(pages), timeout_s=timeout_s)
    return [Rank(mine, probe, read) for mine, probe, read in zip(pages, probes, reads, strict=True)]


def alone(pages: ScriptedPages) -> Rank:
    return Rank(pages, SingleRank(), SingleRank())


def test_ranks_agree_on_the_shortest_hit_before_reading() -> None:
    ranks = ranks_over(ScriptedPages(HASHES), ScriptedPages(HASHES[:4]))

    for rank in ranks:
        rank.probe()

    assert [[ack.pages for ack in rank.end()[0]] for rank in ranks] == [[4], [4]]


def test_ranks_agree_on_what_has_arrived_step_by_step() -> None:
    slow = ScriptedPages(HASHES)
    slow.unreadable = {HASHES[3]}
    ranks = ranks_over(ScriptedPages(HASHES), slow)

    for rank in ranks:
        rank.read()

    for rank in ranks:
        assert [(ack.pages, ack.last) for ack in rank.end()[1]] == [(2, False), (3, True)]


def test_a_read_ends_with_its_last_batch() -> None:
    rank = alone(ScriptedPages(HASHES))

    rank.read(pages=5)

    assert [(ack.pages, ack.last) for ack in rank.end()[1]] == [(2, False), (4, False), (5, True)]


def test_the_whole_prefix_counts_as_used_once_with_its_last_pages() -> None:
    pages = ScriptedPages(HASHES)
    rank = alone(pages)

    rank.prefetcher.read(Fetch(HASHES, range(6), prefix=["above"]))

    assert [ack.pages for ack in rank.end()[1]] == [2, 4, 6]
    assert pages.prefixes == [[], [], ["above", *HASHES[:4]]]


def test_a_stop_on_one_rank_ends_the_read_on_all_at_the_same_page() -> None:
    gates = [Gate("read"), Gate("read")]
    ranks = ranks_over(ScriptedPages(HASHES, before=gates[0]), ScriptedPages(HASHES, before=gates[1]))
    fetches = [rank.read() for rank in ranks]

    gates[0].wait()
    gates[1].wait()
    fetches[1].stopped.set()
    for gate in gates:
        gate.open(times=3)

    for rank in ranks:
        assert [(ack.pages, ack.last) for ack in rank.end()[1]] == [(2, True)]
        assert [operation for operation, _ in rank.pages.calls] == ["read"]


def test_a_fetch_stopped_before_it_is_read_reads_nothing() -> None:
    pages = ScriptedPages(HASHES)
    rank = alone(pages)
    fetch = Fetch(HASHES, range(6))
    fetch.stopped.set()

    rank.prefetcher.probe(fetch)
    rank.prefetcher.read(fetch)

    probed, progress = rank.end()
    assert [ack.pages for ack in probed] == [0]
    assert [(ack.pages, ack.last) for ack in progress] == [(0, True)]
    assert pages.calls == []


@pytest.mark.parametrize("operation", ["lookup", "read"])
@pytest.mark.parametrize("faulty", [0, 1])
def test_a_fault_is_a_miss_on_every_rank_and_the_threads_go_on(operation: str, faulty: int) -> None:
    def explode(called: str, page_hashes: Sequence[str]) -> None:
        if called == operation and page_hashes[0] == "odd":
            raise RuntimeError("planted")

    pages = [ScriptedPages([*HASHES, "odd"], before=explode if rank == faulty else None) for rank in range(2)]
    ranks = ranks_over(*pages)

    for rank in ranks:
        odd = Fetch(["odd"], [0])
        rank.prefetcher.probe(odd)
        rank.prefetcher.read(odd)
        rank.probe()
        rank.read(pages=2)

    for rank in ranks:
        probed, progress = rank.end()
        assert [ack.pages for ack in probed] == [0 if operation == "lookup" else 1, 6]
        assert [(ack.pages, ack.last) for ack in progress] == [(0 if operation == "read" else 1, True), (2, True)]
        assert rank.counters.snapshot() == {"prefetch_failed.RankFailure": 1}


def test_a_rank_that_is_gone_makes_misses_of_what_the_others_fetch() -> None:
    here, gone = ranks_over(ScriptedPages(HASHES), ScriptedPages(HASHES), timeout_s=0.2)

    here.probe()
    here.read()
    here.read()

    probed, progress = here.end()
    assert [ack.pages for ack in probed] == [0]
    assert [(ack.pages, ack.last) for ack in progress] == [(0, True), (0, True)]
    gone.end()


def test_the_expected_time_is_the_slowest_ranks() -> None:
    ranks = ranks_over(ScriptedPages(HASHES), ScriptedPages(HASHES))
    ranks[0].prefetcher.speed.add(1, 0.5)
    ranks[1].prefetcher.speed.add(1, 2.0)

    for rank in ranks:
        rank.probe()

    assert [[ack.read_s for ack in rank.end()[0]] for rank in ranks] == [[12.0], [12.0]]


def test_the_expected_time_is_unknown_before_the_first_read() -> None:
    rank = alone(ScriptedPages(HASHES))

    rank.probe()

    assert [ack.read_s for ack in rank.end()[0]] == [None]
