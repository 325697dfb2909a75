"""A worker's half: fills blocks from the store and stores blocks, beside the engine's own work.

What is stored is copied out of vLLM's blocks before the step ends, so vLLM may use them again at once; where there is
no room for a copy, the scheduler is told and asks again in a later step. What is loaded goes into blocks that vLLM
uses only once it is told that the load has ended; blocks that could not be filled are named, and vLLM computes them.
"""

from __future__ import annotations

import logging
import queue
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hicache_storage import telemetry
from hicache_storage.daemon_pool import DaemonPool
from hicache_storage.engine_integration.adapters.vllm.blocks import EngineBlocks
from hicache_storage.engine_integration.adapters.vllm.work import PageLoad, PageSave, StepWork
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.engine_integration.tiers.host import HostPool
from hicache_storage.engine_integration.tiers.slots import contiguous_runs
from hicache_storage.engine_integration.transfer.streams import Lane, Mark, mark_of_caller
from hicache_storage.telemetry import Counters

_IDLE_WAIT_S = 0.005
_GATHER_NBYTES = 64 << 20
"""Device memory that a copy out of vLLM's blocks takes at most, beside that of one page."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """Loads that have ended since the last time.

    Attributes:
        failed_blocks: vLLM's blocks of those loads that were not filled.
    """

    request_ids: set[str]
    failed_blocks: set[int]


class WorkerSide:
    """Moves pages between vLLM's blocks and the store. `submit` and `ended` are for the engine's thread.

    Args:
        pages: this worker's part of the store; its counters are used.
        writes: whether this worker stores pages.
        staging_pages: pages of host memory for each direction.
        load_threads: loads side by side.
    """

    def __init__(
        self, pages: PageStore, blocks: EngineBlocks, *, writes: bool, staging_pages: int, load_threads: int
    ) -> None:
        self._pages = pages
        self._blocks = blocks
        self._counters: Counters = pages.counters
        self._share = max(1, staging_pages // load_threads)
        self._load_pool = HostPool(self._share * load_threads, pages.layout.page_nbytes)
        self._save_pool = HostPool(max(1, staging_pages), pages.layout.page_nbytes) if writes else None
        self._gather_pages = max(1, _GATHER_NBYTES // pages.layout.page_nbytes)
        self._lane = Lane(blocks.device)
        self._shares: queue.SimpleQueue[int] = queue.SimpleQueue()
        for share in range(load_threads):
            self._shares.put(share)
        self._loaders = DaemonPool(load_threads, "hicache-load")
        self._saver = DaemonPool(1, "hicache-save")
        self._loading: dict[Future[list[int]], PageLoad] = {}
        self._saving: set[Future[None]] = set()
        self._drops = 0

    @property
    def pools(self) -> list[HostPool]:
        """The host memory that pages go through."""
        return [pool for pool in (self._load_pool, self._save_pool) if pool is not None]

    def submit_loads(self, work: StepWork) -> None:
        """Start the step's loads, behind what the calling thread's stream has been given."""
        before = mark_of_caller(self._blocks.device)
        for load in work.loads:
            self._loading[self._loaders.submit(partial(self._load, load, before))] = load

    def submit_saves(self, work: StepWork) -> dict[str, int]:
        """Copy the pages that the step has computed out of their blocks and start to store them.

        Does not wait for the store, but where the step drops what earlier ones gave: nothing of that is stored later.

        Returns:
            Requests of which some pages found no room, each with the first of those, counted from its start.
        """
        if work.drops_saves:
            self._drops += 1
            wait(self._saving)
        self._forget_saved()
        postponed: dict[str, int] = {}
        if self._save_pool is None:
            return postponed
        for save in work.saves:
            staged = self._stage(save, self._save_pool)
            if staged < len(save.page_hashes):
                postponed[save.request_id] = len(save.prefix) + staged
        return postponed

    def ended(self, *, idle: bool) -> Ended:
        """Return the loads that have ended since the last call, each once.

        Args:
            idle: nothing else is to be done; sleep for a few milliseconds until one ends.
        """
        if idle and self._loading:
            wait(self._loading, _IDLE_WAIT_S, FIRST_COMPLETED)
        done = [loading for loading in self._loading if loading.done()]
        ended = Ended(set(), set())
        for loading in done:
            load = self._loading.pop(loading)
            ended.request_ids.add(load.request_id)
            error = loading.exception()
            if error is not None:
                self._counters.add(f"{telemetry.LOAD_FAILED}.{type(error).__name__}")
                _log.error("vllm.load_fault request=%s", load.request_id, exc_info=error)
            ended.failed_blocks.update(load.block_ids if error is not None else loading.result())
        return ended

    def close(self, timeout_s: float) -> bool:
        """Store what is on its way, for at most *timeout_s*; return whether all of it ended."""
        ends_s = time.monotonic() + timeout_s
        late = len(wait(self._saving, timeout_s).not_done)
        late += len(wait(self._loading, max(0.0, ends_s - time.monotonic())).not_done)
        self._saver.close(wait=False, cancel=True)
        self._loaders.close(wait=False, cancel=True)
        if late:
            _log.warning("vllm.closed_early operations=%d waited_s=%.1f", late, timeout_s)
            return False
        for pool in self.pools:
            pool.close()
        return True

    def _forget_saved(self) -> None:
        for saving in [saving for saving in self._saving if saving.done()]:
            self._saving.remove(saving)
            error = saving.exception()
            if error is not None:
                self._counters.add(f"{telemetry.WRITE_FAILED}.{type(error).__name__}")
                _log.error("vllm.save_fault", exc_info=error)

    def _load(self, load: PageLoad, before: Mark) -> list[int]:
        """Fill the blocks of *load*; return those that were not filled, all behind the first that failed."""
        share = self._shares.get()
        try:
            filled = self._fill(load, before, range(share * self._share, (share + 1) * self._share))
        finally:
            self._shares.put(share)
        per_page = self._blocks.blocks_per_page
        filled_blocks = max(0, filled * per_page - load.first_block)
        self._counters.add(telemetry.PAGES_LOADED, filled)
        return list(load.block_ids[filled_blocks:])

    def _fill(self, load: PageLoad, before: Mark, room: range) -> int:
        """Return how many leading pages were read and are in their blocks."""
        rows = self._load_pool.rows[room.start : room.stop]
        prefix = list(load.prefix)
        for start in range(0, len(load.page_hashes), len(room)):
            hashes = load.page_hashes[start : start + len(room)]
            views = self._load_pool.pages(room[: len(hashes)])
            outcomes = self._pages.read_pages(hashes, views, prefix=prefix)
            good = next((at for at, outcome in enumerate(outcomes) if not outcome), len(outcomes))
            if good:
                self._scatter(load, start, good, rows[:good], before)
            if good < len(hashes):
                return start + good
            prefix += hashes
        return len(load.page_hashes)

    def _scatter(self, load: PageLoad, first_page: int, count: int, rows: Tensor, before: Mark) -> None:
        per_page = self._blocks.blocks_per_page
        wanted = range(load.first_block, load.first_block + len(load.block_ids))
        here = [block for block in range(first_page * per_page, (first_page + count) * per_page) if block in wanted]
        sources = [block - first_page * per_page for block in here]
        targets = [load.block_ids[block - load.first_block] for block in here]
        self._lane.after(before)
        with self._lane.current():
            self._blocks.scatter(rows.to(self._blocks.device, non_blocking=True), sources, targets)
            done = self._lane.mark()
        done.wait()

    def _stage(self, save: PageSave, pool: HostPool) -> int:
        """Start to store as many leading pages of *save* as there is room for; return how many."""
        count = min(len(save.page_hashes), pool.slots.num_free)
        if not count:
            return 0
        slots = pool.slots.allocate(count)
        try:
            self._copy_pages_out(save, slots, pool)
            ready, drops = mark_of_caller(self._blocks.device), self._drops
        except BaseException:
            pool.slots.free(slots)
            raise

        def store() -> None:
            try:
                ready.wait()
                if drops == self._drops:
                    self._pages.write_pages(save.page_hashes[:count], pool.pages(slots), prefix=save.prefix)
            finally:
                pool.slots.free(slots)

        try:
            saving = self._saver.submit(store)
        except RuntimeError:  # Nothing is queued, so nobody else gives the pages back.
            pool.slots.free(slots)
            raise
        self._saving.add(saving)
        return count

    def _copy_pages_out(self, save: PageSave, slots: list[int], pool: HostPool) -> None:
        """Copy the leading pages of *save* out of their blocks, one into each of *slots*."""
        per_page = self._blocks.blocks_per_page
        for position, run in contiguous_runs(slots):
            for start in range(0, len(run), self._gather_pages):
                part = run[start : start + self._gather_pages]
                first = position + start
                ids = save.block_ids[first * per_page : (first + len(part)) * per_page]
                self._copy_out(ids, pool.rows[part.start : part.stop])

    def _copy_out(self, block_ids: tuple[int, ...], rows: Tensor) -> None:
        if self._blocks.device.type == "cpu":
            self._blocks.gather(block_ids, rows)
            return
        staging = torch.empty_like(rows, device=self._blocks.device)
        self._blocks.gather(block_ids, staging)
        rows.copy_(staging, non_blocking=True)
