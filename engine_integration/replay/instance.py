"""One simulated instance: the real controller, driven as an engine drives it, without a model."""

from __future__ import annotations

from collections import deque

from hicache_storage.engine_integration.controller import Admission, CachedTokens, Controller
from hicache_storage.engine_integration.radix import Tier
from hicache_storage.engine_integration.replay.coded import CodedMemory
from hicache_storage.engine_integration.replay.trace import TraceRequest
from hicache_storage.engine_integration.tiers.slots import PageAllocator
from hicache_storage.errors import TierFull
from hicache_storage.layout import page_hashes


class Instance:
    """All ranks of one instance behind one controller, for ranks take every decision alike.

    Nothing moves between two calls of `serve`: what L3 is asked for has arrived before a request starts, and what
    an ended request leaves is stored before the next one comes.

    Args:
        device: the controller's.
        memory: where pages have bytes; None for pages without.
        concurrency: requests that hold their pages at a time. One ends when so many are there.
    """

    def __init__(
        self, controller: Controller, device: PageAllocator, memory: CodedMemory | None, concurrency: int
    ) -> None:
        self.controller = controller
        self.memory = memory
        self._device = device
        self._concurrency = concurrency
        self._running: deque[tuple[str, TraceRequest]] = deque()
        self._num_arrived = 0

    def serve(self, request: TraceRequest) -> CachedTokens | None:
        """Start a request, and end the oldest if need be; None if the device is too small for it."""
        self._num_arrived += 1
        name = str(self._num_arrived)
        self.controller.arrive(name, request.tokens, seed=request.seed)
        self.controller.settle()
        self._make_room(self._num_pages(request))
        admission = self.controller.admit(name)
        try:
            self._compute(name, request, admission)
        except TierFull:
            self.controller.abort(name)
            return None
        self._running.append((name, request))
        while len(self._running) >= self._concurrency:
            self._end_oldest()
        return admission.cached

    def drain(self) -> None:
        """End every request."""
        while self._running:
            self._end_oldest()

    def _compute(self, name: str, request: TraceRequest, admission: Admission) -> None:
        held = len(admission.pages)
        hashes: list[str] = []
        if self.memory is not None:
            hashes = page_hashes(request.tokens, self.controller.tree.page_tokens, prior=request.seed)
            self.memory.judge(admission.pages, hashes[:held])
        pages = self.controller.allocate(name, self._num_pages(request) - held)
        if self.memory is not None:
            self.memory.compute(pages[: len(hashes) - held], hashes[held:])

    def _num_pages(self, request: TraceRequest) -> int:
        return -(-len(request.tokens) // self.controller.tree.page_tokens)

    def _make_room(self, num_pages: int) -> None:
        """End requests until the device can give up *num_pages*, or none is left: as a scheduler waits for them."""
        tree = self.controller.tree
        while self._running and self._device.num_free + tree.num_evictable(Tier.DEVICE) < num_pages:
            self._end_oldest()

    def _end_oldest(self) -> None:
        name, request = self._running.popleft()
        self.controller.finish(name, request.tokens)
        self.controller.settle()
        self.controller.step()
