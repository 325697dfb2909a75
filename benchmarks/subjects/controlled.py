"""This project with everything on top: a prompt's pages, fetched from L3 by the controller into the host tier."""

from __future__ import annotations

from benchmarks.subject import SubjectFailed, timed
from benchmarks.subjects.ours import Pages
from benchmarks.workload import Workload
from hicache_storage.engine_integration.controller import Controller, Pools, StoreConnection
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.store_tier.page_group import PageGroup, Part
from hicache_storage.engine_integration.tiers import PageAllocator
from hicache_storage.layout import page_hashes


class Restore(Pages):
    """A new server that gets one prompt: hashing, lookup, agreement, host pages, verified reads, and the tree."""

    def __init__(self) -> None:
        super().__init__()
        self.calls |= {"read": "Controller.arrive and settle over PageStore and FileStore, checksums verified"}

    def prepare(self, workload: Workload) -> None:
        super().prepare(workload)
        # One token more than the pages hold: the last one is always computed.
        self._tokens = range(workload.objects * workload.page_tokens + 1)
        self._hashes = page_hashes(self._tokens, workload.page_tokens)

    def read(self) -> float:
        self._first_byte = 0
        workload = self._workload
        pages = len(self._hashes)
        # Host pages are given out in ascending order, so page n of the prompt lies where the harness looks for it.
        controller = Controller(
            workload.page_tokens,
            Pools(PageAllocator(pages), PageAllocator(pages)),
            options=TierOptions(prefetch_host_fraction=1, store_batch_pages=workload.batch),
        )
        kv = Part("kv", self._client, self._target.views.__getitem__)
        controller.attach(StoreConnection(PageGroup(kv), writes=False))
        tokens = list(self._tokens)

        def restore() -> None:
            controller.arrive("prompt", tokens)
            controller.settle()

        seconds = timed(restore)
        cached = controller.admit("prompt").cached
        controller.abort("prompt")
        controller.settle()
        controller.detach()
        if cached.store != pages * workload.page_tokens:
            raise SubjectFailed(f"{cached.store} of {pages * workload.page_tokens} tokens came from the store")
        return seconds
