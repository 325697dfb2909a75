"""A model server without a model: KV of a page is the hash of its prefix, so every byte that is served can be judged."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from hicache_storage.engine_integration.controller import Admission, Controller, Pools, StoreConnection
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.engine_integration.parallel.agree import Group, SingleRank
from hicache_storage.engine_integration.parallel.ranks import Ranks
from hicache_storage.engine_integration.radix import reusable_pages
from hicache_storage.engine_integration.store_tier.page_group import PageGroup, Part
from hicache_storage.engine_integration.tiers.slots import PageAllocator
from hicache_storage.errors import HiCacheError, TierFull
from hicache_storage.layout import Grid, KVShape, Namespace, Shard, ShardLayout, page_hashes
from hicache_storage.store import ObjectStore

PAGE_TOKENS = 4
PAGE_NBYTES = 64
SHAPE = KVShape.mla(num_layers=1, latent_dim=16, dtype="uint8", page_tokens=PAGE_TOKENS)
GRID = Grid(1, 0)
LAYOUT = ShardLayout(SHAPE, GRID, Shard(range(1), range(0)))
NAMESPACE = Namespace.of(model_id="coded", shape=SHAPE, grid=GRID)


class Memory:
    """Pages of 64 bytes: room for the hash that says whose KV they hold."""

    def __init__(self, pages: int) -> None:
        self._bytes = memoryview(bytearray(b"\xa5") * (pages * PAGE_NBYTES))

    def page(self, page: int) -> memoryview:
        return self._bytes[page * PAGE_NBYTES : (page + 1) * PAGE_NBYTES]

    def fill(self, page: int, page_hash: str) -> None:
        self.page(page)[:] = page_hash.encode()

    def hash_in(self, page: int) -> str:
        return bytes(self.page(page)).decode("latin-1")


class Job:
    """A copy that runs when the rank's own thread waits for it, or when the test lets it."""

    def __init__(self, copy: Callable[[], None]) -> None:
        self._copy: Callable[[], None] | None = copy
        self._ended = threading.Event()
        self.error: Exception | None = None
        self.layers = Layers(self)
        self.before: Callable[[], object] = lambda: None

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        if threading.current_thread().name.startswith("hicache-"):
            return self._ended.wait()  # whoever tells the other ranks how it ended does not make it end
        copy, self._copy = self._copy, None
        if copy is not None:
            self.before()
            try:
                copy()
            except Exception as error:
                self.error = error
            self._ended.set()
        return True


class Layers:
    """A job's layers, which arrive all at once."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def wait(self, layer: int, timeout_s: float | None = None) -> None:
        self._job.wait()
        if self._job.error is not None:
            raise HiCacheError("the load failed") from self._job.error


class Copies:
    """Copies between two memories, at once, or one after another when `run` says so."""

    def __init__(self, source: Memory, target: Memory, *, device_first: bool, at_once: bool) -> None:
        self._source, self._target = source, target
        self._device_first = device_first
        self.at_once = at_once
        self.jobs: deque[Job] = deque()
        self.fail_next = False

    def submit(self, device_pages: Sequence[int], host_pages: Sequence[int]) -> Job:
        sources, targets = (device_pages, host_pages) if self._device_first else (host_pages, device_pages)
        pairs = list(zip(sources, targets, strict=True))
        fails, self.fail_next = self.fail_next, False

        def copy() -> None:
            if fails:
                raise RuntimeError("planted")
            for source, target in pairs:
                self._target.page(target)[:] = self._source.page(source)

        job = Job(copy)
        earlier = list(self.jobs)
        job.before = lambda: [one.wait() for one in earlier]
        self.jobs.append(job)
        if self.at_once:
            self.run()
        return job

    def run(self, count: int | None = None) -> None:
        """Perform the *count* oldest copies, all by default."""
        for _ in range(len(self.jobs) if count is None else count):
            self.jobs.popleft().wait()


class Engine:
    """One rank. `generate` does what an engine does with a request, and judges every page that it is given."""

    def __init__(
        self,
        *,
        device_pages: int = 64,
        host_pages: int = 128,
        options: TierOptions | None = None,
        store: ObjectStore | None = None,
        at_once: bool = True,
        ranks: Ranks | None = None,
        groups: tuple[Group, Group, Group] | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.device, self.host = Memory(device_pages), Memory(host_pages)
        self.backup = Copies(self.device, self.host, device_first=True, at_once=at_once)
        self.load = Copies(self.host, self.device, device_first=False, at_once=at_once)
        self.device_slots, self.host_slots = PageAllocator(device_pages), PageAllocator(host_pages)
        self.controller = Controller(
            PAGE_TOKENS,
            Pools(self.device_slots, self.host_slots, self.backup, self.load),
            options=options or TierOptions(prefetch_threshold_tokens=PAGE_TOKENS, load_back_threshold_tokens=0),
            ranks=ranks,
            clock=clock,
        )
        self.counters = self.controller.counters
        self._groups = groups or (SingleRank(), SingleRank(), SingleRank())
        self._serial = 0
        if store is not None:
            self.attach(store)

    def attach(self, store: ObjectStore) -> None:
        client = PageStore(store, NAMESPACE, LAYOUT, counters=self.counters)
        self.controller.attach(StoreConnection(PageGroup(Part("kv", client, self.host.page)), *self._groups))

    def generate(self, tokens: Sequence[int], *, chunk: int | None = None, seed: str | None = None) -> Admission:
        """Serve one request from arrival to end, its prompt computed in pieces of *chunk* tokens."""
        name = self.name()
        self.controller.arrive(name, tokens, seed=seed)
        while not self.controller.ready(name):
            self.controller.step()
        admission = self.start(name, tokens, seed=seed)
        for stop in range(admission.cached.total + (chunk or len(tokens)), len(tokens), chunk or len(tokens)):
            self.compute(name, tokens[:stop], seed=seed)
            self.controller.commit(name, tokens[:stop])
            self.controller.step()
        self.compute(name, tokens, seed=seed)
        self.controller.finish(name, tokens)
        self.controller.step()
        return admission

    def name(self) -> str:
        self._serial += 1
        return f"request {self._serial}"

    def start(self, name: str, tokens: Sequence[int], *, seed: str | None = None) -> Admission:
        """Admit a request and judge its cached pages."""
        admission = self.controller.admit(name)
        for load in admission.loads:
            load.layers.wait(0)
        expected = page_hashes(tokens, PAGE_TOKENS, prior=seed)[: len(admission.pages)]
        assert [self.device.hash_in(page) for page in admission.pages] == expected
        assert admission.cached.total == len(admission.pages) * PAGE_TOKENS
        assert len(admission.pages) <= reusable_pages(len(tokens), PAGE_TOKENS)
        return admission

    def compute(self, name: str, tokens: Sequence[int], *, seed: str | None = None) -> None:
        """Allocate what *tokens* need and write KV where there was none; judge what was there."""
        pages = self.controller.pages(name)
        held = len(pages)
        wanted = -(-len(tokens) // PAGE_TOKENS) - held
        if wanted > 0:
            pages += self.controller.allocate(name, wanted)
        for position, page_hash in enumerate(page_hashes(tokens, PAGE_TOKENS, prior=seed)):
            if position >= held - 1 and self.device.hash_in(pages[position]) != page_hash:
                self.device.fill(pages[position], page_hash)
            assert self.device.hash_in(pages[position]) == page_hash

    def try_generate(self, tokens: Sequence[int], *, seed: str | None = None) -> Admission | None:
        """`generate`, or None and nothing held where the device has no room."""
        with suppress(TierFull):
            return self.generate(tokens, seed=seed)
        self.controller.abort(f"request {self._serial}")
        return None

    def check(self) -> None:
        self.controller.check(hashes=True)

    def close(self) -> None:
        """Detach the store and judge that nothing is left over."""
        self.controller.settle()
        self.controller.detach()
        self.controller.flush()
        self.check()
        assert (self.device_slots.num_held, self.host_slots.num_held) == (0, 0)
        self.controller.close()


def prompt(*pages: int, extra: int = 0) -> list[int]:
    """Return tokens of one page for each number, and *extra* tokens behind them."""
    return [page * 100 + at for page in pages for at in range(PAGE_TOKENS)] + [9_999] * extra
