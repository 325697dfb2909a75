"""Process: one rank of a reader topology, which continues the prompt without the store and then with it."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from hicache_storage.cli import exit_codes
from hicache_storage.cli.demo.job import ReadJob, ReadResult
from hicache_storage.cli.demo.processes import child_main
from hicache_storage.cli.demo.ranks import Ranks
from hicache_storage.cli.demo.session import Session
from hicache_storage.cli.demo.stage import load_stage
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.engine_integration.reference_engine.llama import LlamaStage
from hicache_storage.engine_integration.tiers.host import HostPool
from hicache_storage.engine_integration.transfer import Load
from hicache_storage.errors import StoreError
from hicache_storage.layout import Topology
from hicache_storage.types import Outcome

_POISON = 0xA5
_NO_PAGE = "f" * 64


@dataclass(frozen=True, slots=True)
class Restored:
    """Leading pages that every rank has in its pool, and what that took on this one."""

    pages: int
    seconds: float
    failure: StoreError | None


class Reader:
    """One rank with its part of the model and its view of the store."""

    def __init__(self, job: ReadJob, stage: LlamaStage, ranks: Ranks, pages: PageStore) -> None:
        self._job = job
        self._stage = stage
        self._ranks = ranks
        self._pages = pages
        self._prefix_tokens = job.num_pages * job.cache.page_tokens
        # Engines allocate host pages once, at start; so does this one, before the clock runs.
        self._host = HostPool(job.num_pages, pages.layout.page_nbytes)
        self._host.rows.fill_(_POISON)
        self._host_pages = self._host.slots.allocate(job.num_pages)

    def warm_up(self) -> None:
        """Use weights, code and store client once, so that no measured run pays for starting them.

        The store is asked for a page that nobody ever wrote: nothing of the measured pages moves.
        """
        self._session(backwards=False).compute(self._job.tokens[: self._job.cache.page_tokens], 0)
        self._pages.read_pages([_NO_PAGE], self._host.pages(self._host_pages[:1]))
        # As engines do: what was allocated by now stays, and no collection walks through it again.
        gc.collect()
        gc.freeze()

    def cold(self) -> tuple[float, list[int]]:
        """Return time to first token and the continuation, everything computed."""
        session = self._session(backwards=False)
        self._ranks.agree_min(0)  # all start together
        started = time.perf_counter()
        first = self._compute_from(session, 0)
        return time.perf_counter() - started, self._go_on(session, first)

    def warm(self) -> tuple[float, list[int], Restored]:
        """Return time to first token and the continuation, with the prefix restored from the store."""
        session = self._session(backwards=True)
        self._ranks.agree_min(0)  # all start together
        started = time.perf_counter()
        restored = self._restore(session)
        first = self._compute_from(session, restored.pages * self._job.cache.page_tokens)
        return time.perf_counter() - started, self._go_on(session, first), restored

    def _session(self, *, backwards: bool) -> Session:
        """Return a new, empty cache; *backwards* lays the sequence into other slots than the cold run's."""
        page_tokens = self._job.cache.page_tokens
        page_ids = torch.arange(-(-(len(self._job.tokens) + self._job.max_new_tokens) // page_tokens))
        return Session(self._stage, self._ranks, page_ids.flip(0) if backwards else page_ids, page_tokens)

    def _restore(self, session: Session) -> Restored:
        """Fill the pool with the longest prefix that every rank can have."""
        found = self._ranks.agree_min(self._pages.lookup_prefix(self._job.page_hashes))
        started = time.perf_counter()
        outcomes = self._pages.read_pages(self._job.page_hashes[:found], self._host.pages(self._host_pages[:found]))
        read_s = time.perf_counter() - started
        pages = self._ranks.agree_min(_leading_hits(outcomes))
        started = time.perf_counter()
        self._load(session, pages)
        seconds = read_s + time.perf_counter() - started
        failures = (outcome.error for outcome in outcomes if outcome.error is not None)
        return Restored(pages, seconds, next(failures, None))

    def _load(self, session: Session, count: int) -> None:
        """Copy the first *count* host pages to the session's pool."""
        with Load(session.pool, self._host, group_heads=self._pages.layout.group_heads) as load:
            transfer = load.submit(session.page_ids[:count].tolist(), self._host_pages[:count])
            transfer.wait()
        if transfer.error is not None:
            raise transfer.error

    def _compute_from(self, session: Session, start: int) -> int:
        """Compute the rest of the prefix from *start*, then the suffix; return the first new token.

        Always in these chunks, so that with all pages restored the suffix is computed by the same
        operations as without the store.
        """
        session.extend(self._job.tokens[start : self._prefix_tokens], start)
        return session.compute(self._job.tokens[self._prefix_tokens :], self._prefix_tokens)

    def _go_on(self, session: Session, first: int) -> list[int]:
        return session.go_on(first, len(self._job.tokens), self._job.max_new_tokens)


def read(job: ReadJob, report: Callable[[str], None]) -> ReadResult:
    """Return what this rank saw with and without the store."""
    topology, place = Topology.parse(job.reader), {"tp_rank": job.tp_rank, "pp_rank": job.pp_rank}
    ranks = Ranks(topology, **place, rendezvous=job.rendezvous, timeout_s=job.timeout_s)
    stage = load_stage(Path(job.folder), job.cache.dtype, topology, job.tp_rank, job.pp_rank, ranks.tensor_sum)
    layout = job.cache.layout(topology.shard(job.cache.shape, **place))
    with job.store.open() as store:
        pages = PageStore(store, job.cache.namespace, layout, read_only=True)
        reader = Reader(job, stage, ranks, pages)
        speaks = job.tp_rank == job.pp_rank == 0
        reader.warm_up()
        if speaks:
            report(f"{job.reader}: model loaded, computing all {len(job.tokens)} tokens")
        ttft_cold_s, cold = reader.cold()
        if speaks:
            report(f"{job.reader}: cold in {ttft_cold_s:.2f} s, now with the store")
        ttft_warm_s, warm, restored = reader.warm()
        ranks.close()
    failure = restored.failure
    return ReadResult(
        ttft_cold_s=ttft_cold_s,
        ttft_warm_s=ttft_warm_s,
        restore_s=restored.seconds,
        pages_hit=restored.pages,
        objects=restored.pages * pages.objects_per_page,
        nbytes=restored.pages * layout.page_nbytes,
        failure=f"{type(failure).__name__}: {failure}" if failure is not None else "",
        failure_status=exit_codes.of_error(failure) if failure is not None else exit_codes.DONE,
        cold=cold,
        warm=warm,
    )


def _leading_hits(outcomes: list[Outcome]) -> int:
    """Return how many pages were read before the first that was not."""
    return next((index for index, outcome in enumerate(outcomes) if not outcome), len(outcomes))


if __name__ == "__main__":
    sys.exit(child_main(ReadJob, read))
