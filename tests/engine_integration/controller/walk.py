"""A server that does anything at any time, beside the set of pages whose KV was ever computed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from hicache_storage.engine_integration.parallel.agree import Group, SingleRank, agree_all, agree_same
from hicache_storage.engine_integration.radix import Node, reusable_pages
from hicache_storage.errors import HiCacheError, RankFailure, TierFull
from hicache_storage.layout import page_hashes, request_seed
from hicache_storage.store import ObjectStore
from tests.engine_integration.controller.engine import PAGE_TOKENS, Engine, prompt

SEEDS = (None, None, request_seed(cache_salt="a"))
MOST_REQUESTS = 5


@dataclass
class Running:
    """A request. Of its tokens, *done* have KV; None before its admission."""

    tokens: list[int]
    seed: str | None
    done: int | None = None


class Walk:
    """One rank that takes random steps. Ranks whose walks have equal *seed*s do the same.

    Args:
        seed: of what is done; what differs between ranks is drawn from *own*.
        store: attached and detached at random.
        group: the engine's own ranks, who agree on what went wrong and compare their trees.

    Attributes:
        computed: hashes of all pages that a request has written.
        committed: those among them that were given to the controller.
        keeps_all: nothing is ever lost: what was committed has to be found.
    """

    def __init__(
        self, engine: Engine, seed: int, store: ObjectStore, *, own: random.Random, group: Group | None = None
    ) -> None:
        self.engine = engine
        self.rng = random.Random(seed)
        self.own = own
        self.store = store
        self.group = group or SingleRank()
        self.requests: dict[str, Running] = {}
        self.computed: set[str] = set()
        self.committed: set[str] = set()
        self.keeps_all = False
        self.now_s = 0.0
        self.fault_per_mille = 0
        self.actions: dict[Callable[[], None], int] = {
            self.arrive: 8,
            self.start: 12,
            self.compute: 16,
            self.abort: 2,
            self.idle: 16,
            self.settle: 1,
            self.reattach: 1,
            self.flush: 2,
            self.flush_store: 1,
        }

    def step(self) -> None:
        """Do one thing, let some copies happen, and count everything."""
        self.now_s += 0.05
        (action,) = self.rng.choices(list(self.actions), weights=list(self.actions.values()))
        action()
        for copies in (self.engine.backup, self.engine.load):
            copies.fail_next |= self.own.randrange(1000) < self.fault_per_mille
            copies.run(self.own.randint(0, len(copies.jobs)))
        self.engine.check()

    def arrive(self) -> None:
        if len(self.requests) == MOST_REQUESTS:
            return
        name, tokens, seed = self.engine.name(), self.any_prompt(self.rng.randrange(8)), self.rng.choice(SEEDS)
        self.requests[name] = Running(tokens, seed)
        self.engine.controller.arrive(name, tokens, seed=seed, priority=self.rng.randrange(2))

    def any_prompt(self, branch: int) -> list[int]:
        """Return one of many prompts; those of different branches share a beginning too."""
        pages = [10 * depth + (branch if depth >= branch else 0) for depth in range(self.rng.randint(1, 14))]
        return prompt(*pages, extra=self.rng.randrange(PAGE_TOKENS))

    def start(self) -> None:
        """Admit a request that need not wait, and judge the pages that it is given."""
        waiting = [name for name, request in self.requests.items() if request.done is None]
        if not waiting:
            self.arrive()
            return
        name = self.rng.choice(waiting)
        if not self.engine.controller.ready(name):
            self.idle()
            return
        request = self.requests[name]
        admission = self.engine.controller.admit(name)

        def arrived() -> bool:
            try:
                for load in admission.loads:
                    load.layers.wait(0)
            except HiCacheError:
                return False
            return True

        if not agree_all(self.group, "loads", arrived):
            self.end(name)
            return
        hashes = page_hashes(request.tokens, PAGE_TOKENS, prior=request.seed)[: len(admission.pages)]
        assert [self.engine.device.hash_in(page) for page in admission.pages] == hashes
        assert self.computed.issuperset(hashes)
        assert len(hashes) <= (most := self.most_pages(request))
        assert len(hashes) == most or not self.keeps_all
        request.done = admission.cached.total

    def most_pages(self, request: Running) -> int:
        """Return how many pages of a request could come from a cache that has lost nothing."""
        wanted = page_hashes(request.tokens, PAGE_TOKENS, prior=request.seed)
        known = list(takewhile(self.committed.__contains__, wanted))
        return min(len(known), reusable_pages(len(request.tokens), PAGE_TOKENS))

    def compute(self) -> None:
        """Compute some more tokens of a request, or end it."""
        running = [name for name, request in self.requests.items() if request.done is not None]
        if not running:
            self.start()
            return
        name = self.rng.choice(running)
        request = self.requests[name]
        stop = min(len(request.tokens), (request.done or 0) + self.rng.randint(1, 6 * PAGE_TOKENS))
        done = request.tokens[:stop]
        try:
            self.engine.compute(name, done, seed=request.seed)
        except TierFull:
            self.end(name)
            return
        request.done = stop
        hashes = page_hashes(done, PAGE_TOKENS, prior=request.seed)
        self.computed.update(hashes)
        self.committed.update(hashes)
        if stop < len(request.tokens):
            self.engine.controller.commit(name, done)
            return
        self.engine.controller.finish(name, done)
        del self.requests[name]

    def abort(self) -> None:
        if self.requests:
            self.end(self.rng.choice(list(self.requests)))

    def end(self, name: str) -> None:
        del self.requests[name]
        self.engine.controller.abort(name)

    def idle(self) -> None:
        self.engine.controller.step()

    def settle(self) -> None:
        self.engine.controller.settle()

    def reattach(self) -> None:
        """Take the store away; more often than not it comes back at once."""
        self.engine.controller.detach()
        if self.rng.randrange(4):
            self.engine.attach(self.store)

    def flush(self) -> None:
        for name in list(self.requests):
            self.end(name)
        self.engine.controller.flush()
        assert (self.engine.device_slots.num_held, self.engine.host_slots.num_held) == (0, 0)

    def flush_store(self) -> None:
        """Empty the store, or as much of it as it takes."""
        with suppress(RankFailure):
            self.engine.controller.flush_store()

    def close(self) -> None:
        """End everything; the engine judges that nothing is left over."""
        for name in list(self.requests):
            self.end(name)
        self.engine.close()

    def compare(self) -> None:
        """Raise on every rank unless all have the same tree and the same slots."""
        agree_same(self.group, "tree", lambda: hash(picture(self.engine)) & 0xFFFFFFFF)


def picture(engine: Engine) -> tuple[object, ...]:
    """Return all that ranks must have in common."""

    def of(node: Node) -> tuple[object, ...]:
        pages = tuple(None if stay.pages is None else tuple(stay.pages) for stay in node.tiers)
        facts = (node.id, node.ids, node.stored, node.uses, node.last_used, node.device.locks, node.host.locks)
        return (*facts, pages, tuple(of(child) for child in node.children.values()))

    slots = (engine.device_slots.held_pages(), engine.host_slots.held_pages())
    return (of(engine.controller.tree.root), *map(tuple, slots))
