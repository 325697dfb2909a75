"""Process: one rank of the writer topology, writing the pages of its shard. Needs no torch."""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable

from hicache_storage import telemetry
from hicache_storage.cli.demo.job import WriteJob, WriteResult
from hicache_storage.cli.demo.processes import child_main
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.layout import Topology


def write(job: WriteJob, report: Callable[[str], None]) -> WriteResult:  # noqa: ARG001 - too short to report on
    """Store the rank's shard of every page.

    Raises:
        StoreError: an object could not be stored.
    """
    writer, region = Topology.parse(job.writer), job.region
    shard = writer.shard(job.cache.shape, tp_rank=region.tp_rank, pp_rank=region.pp_rank)
    layout = job.cache.layout(shard)
    with (
        job.store.open() as store,
        mmap.mmap(job.handover, 0, access=mmap.ACCESS_READ) as handover,
        memoryview(handover) as memory,
    ):
        pages = PageStore(store, job.cache.namespace, layout)
        spans = range(region.offset, region.offset + region.nbytes, layout.page_nbytes)
        views = [memory[offset : offset + layout.page_nbytes] for offset in spans]
        started = time.perf_counter()
        outcomes = pages.write_pages(job.page_hashes, views)
        elapsed = time.perf_counter() - started
        for view in views:
            view.release()
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return WriteResult(pages.counters[telemetry.OBJECTS_STORED], pages.counters[telemetry.NBYTES_STORED], elapsed)


if __name__ == "__main__":
    sys.exit(child_main(WriteJob, write))
