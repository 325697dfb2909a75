"""L2 to L3 on several ranks."""

from __future__ import annotations

import pytest

from hicache_storage.engine_integration.parallel.agree import Group, SingleRank
from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.engine_integration.store_tier.writeback import Write, Writeback
from hicache_storage.telemetry import Counters
from tests.engine_integration.store_tier.pages import PATIENCE_S, ScriptedPages

HASHES = [f"page{number}" for number in range(5)]


def writeback(pages: ScriptedPages, group: Group, counters: Counters | None = None) -> Writeback:
    return Writeback(pages.group(), group=group, counters=counters or Counters())


def ended(writer: Writeback) -> list[int]:
    """End the thread, which acknowledges everything first, and return how many pages each write stored."""
    assert writer.close(PATIENCE_S)
    return [ack.pages for ack in writer.written.take(writer.written.ready())]


def test_writes_go_to_the_store_in_the_order_of_submission_with_what_is_in_front() -> None:
    pages = ScriptedPages()
    writer = writeback(pages, SingleRank())

    writer.write(Write(HASHES[:2], range(2)))
    writer.write(Write(HASHES[2:], range(3), prefix=HASHES[:2]))

    assert ended(writer) == [2, 3]
    assert [hashes for _, hashes in pages.calls] == [HASHES[:2], HASHES[2:]]
    assert pages.prefixes == [[], HASHES[:2]]


def test_nothing_is_stored_behind_a_failed_page() -> None:
    pages = ScriptedPages()
    pages.unwritable = {HASHES[1]}
    writer = writeback(pages, SingleRank())

    writer.write(Write(HASHES, range(5)))

    assert ended(writer) == [1]
    assert len(pages.calls) == 1


def test_a_page_is_stored_when_every_rank_has_stored_it() -> None:
    full, failing = ScriptedPages(), ScriptedPages()
    failing.unwritable = {HASHES[3]}
    groups = ThreadGroup.of(2, timeout_s=PATIENCE_S)
    writers = [writeback(pages, group) for pages, group in zip((full, failing), groups, strict=True)]

    for writer in writers:
        writer.write(Write(HASHES, range(5)))

    assert [ended(writer) for writer in writers] == [[3], [3]]


@pytest.mark.parametrize("faulty", [0, 1])
def test_a_fault_stores_nothing_on_any_rank_and_the_threads_go_on(faulty: int) -> None:
    def explode(_: str, page_hashes: object) -> None:
        if page_hashes == ["odd"]:
            raise RuntimeError("planted")

    groups = ThreadGroup.of(2, timeout_s=PATIENCE_S)
    counters = [Counters(), Counters()]
    writers = [
        writeback(ScriptedPages(before=explode if rank == faulty else None), groups[rank], counters[rank])
        for rank in range(2)
    ]

    for writer in writers:
        writer.write(Write(["odd"], [0]))
        writer.write(Write(HASHES, range(5)))

    assert [ended(writer) for writer in writers] == [[0, 5], [0, 5]]
    assert [each.snapshot() for each in counters] == [{"writeback_failed.RankFailure": 1}] * 2
