"""The calls that an engine makes. Torch-free; all of one thread, the scheduler's, on every rank alike.

    arrive(request)      when it comes in                       begins to ask L3
    step()               once per scheduler step                applies what has finished on every rank
    ready(request)       before it is scheduled                 may it start, or is L3 worth waiting for
    admit(request)       when it is scheduled first             cached pages, locked; loads to wait for
    allocate(request, n) before a forward pass                  device pages of its own
    commit(request, ...) after a forward pass                   full pages become everybody's
    finish(request, ...) or abort(request)                      once, whatever happened

Ranks that make the same calls in the same order take the same decisions. Whatever finishes at different times on
different ranks is applied by `step`, as far as the first pipeline stage has seen it finish; clocks are the first stage's.
Stages make their calls each in its own time: none waits for a later one, except for copies of its own that it cannot
go on without. A call that raises has changed nothing but what was evicted for it, unless it says otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from hicache_storage import telemetry
from hicache_storage.engine_integration.consensus import rank_consensus
from hicache_storage.engine_integration.controller.alike import agree_alike
from hicache_storage.engine_integration.controller.books import without
from hicache_storage.engine_integration.controller.copies import Backups, Loads
from hicache_storage.engine_integration.controller.device_room import DeviceRoom
from hicache_storage.engine_integration.controller.host_room import HostRoom
from hicache_storage.engine_integration.controller.pools import Pools
from hicache_storage.engine_integration.controller.prefixes import Prefixes
from hicache_storage.engine_integration.controller.request import Admission, Request, RequestFetch
from hicache_storage.engine_integration.controller.store_link import StoreConnection, StoreLink, agree_link
from hicache_storage.engine_integration.controller.write_policy import WritePolicy
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.parallel.ranks import Ranks
from hicache_storage.engine_integration.radix import Key, Node, RadixTree, Tier, check, reusable_pages
from hicache_storage.errors import InvariantError
from hicache_storage.telemetry import Counters


class Controller:
    """One rank's tiers.

    Args:
        page_tokens: tokens of a page.
        pools: the tiers that the engine owns; the controller and whom it gives pages to are their only users.
        ranks: those that take the same decisions. All of them make a controller at the same point of their schedules.
        clock: seconds, monotonic.

    Raises:
        RankFailure: the tiers of two ranks have room for different numbers of pages, or other options.

    Attributes:
        tree: what is cached; for reading.
    """

    def __init__(
        self,
        page_tokens: int,
        pools: Pools,
        *,
        options: TierOptions | None = None,
        ranks: Ranks | None = None,
        counters: Counters | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options or TierOptions()
        self.counters = counters or Counters()
        self.tree = RadixTree(
            page_tokens, eviction=self.options.eviction_policy, host_eviction=self.options.host_eviction_policy
        )
        self._ranks = ranks = ranks or Ranks()
        agree_alike(ranks.sync, page_tokens, pools, self.options)
        self._sync = ranks.sync
        self._clock = clock
        self._device = pools.device
        self._host = HostRoom(self.tree, pools.host, self.counters)
        self._backups = Backups(self.tree, self._host, pools.backup, ranks=ranks, counters=self.counters)
        self._loads = Loads(self.tree, pools.device, pools.load, ranks=ranks, counters=self.counters)
        self._room = DeviceRoom(self.tree, pools, self._backups, self.options, self.counters)
        self._prefixes = Prefixes(self.tree, self._room, self._loads, self.options, self.counters)
        self._policy = WritePolicy(self.tree, self._backups, self.options)
        self._link: StoreLink | None = None
        self._requests: dict[str, Request] = {}
        self._host.relief = self._relieve_host

    # -- the life of a request -------------------------------------------------------------

    @rank_consensus(same_params="request_id")
    def arrive(self, request_id: str, tokens: Sequence[int], *, seed: str | None = None, priority: int = 0) -> None:
        """Take up a request and begin to fetch what L3 may have of its prompt.

        Args:
            tokens: its prompt.
            seed: `layout.request_seed` of its LoRA id, cache salt and so on.

        Raises:
            InvariantError: a request of that id is there already.
            LayoutError: a token id is out of range.
        """
        if request_id in self._requests:
            raise InvariantError(f"request {request_id!r} has arrived before and not ended")
        reusable = reusable_pages(len(tokens), self.tree.page_tokens)
        key = Key.of(tokens, self.tree.page_tokens, seed=seed).first(reusable)
        request = Request(request_id, key, priority)
        self._requests[request_id] = request
        if self._link is not None:
            match = self.tree.match_and_split(key, self._prefixes.tick(), is_use=False)
            request.fetch = self._link.fetches.begin(key, match)

    @rank_consensus(same_params="request_id", same_results=True)
    def ready(self, request_id: str) -> bool:
        """Return whether the request should start now, by the prefetch policy; its prefetch then stops."""
        request = self._request(request_id)
        fetch = request.fetch
        if self._link is None or fetch is None or fetch.is_done:
            return True
        if self._waits(fetch):
            return False
        if not fetch.fetch.stopped.is_set():
            self.counters.add(telemetry.PREFETCH_STOPPED)
        self._link.fetches.stop(fetch)
        return True

    @rank_consensus(same_params="request_id", same_results=("result.cached", "result.pages"))
    def admit(self, request_id: str) -> Admission:
        """Lock the cached prefix of the request and load what of it is on the host alone.

        At least one token of the prompt is left to compute. All of a host hit is loaded, or nothing of it: it is
        too short, or the device has no room.

        Raises:
            InvariantError: it was admitted before.
        """
        request = self._request(request_id)
        if request.node is not None:
            raise InvariantError(f"request {request_id!r} is admitted already")
        match = self._prefixes.match(request.key)
        loaded = self._prefixes.load(match)
        node = match.last_node if loaded else match.device_node
        self.tree.lock(node, Tier.DEVICE)
        request.node = node
        full = self.tree.match(request.key.first(match.num_device + loaded))
        request.pages = list(full.device_pages())
        request.num_shared = len(request.pages)
        self._policy.used(node)
        cached = self._prefixes.cached(match, loaded, request.fetch)
        return Admission(tuple(request.pages), cached, self._loads.jobs(full.loads))

    @rank_consensus(same_params=("request_id", "num_pages"), same_results=True)
    def allocate(self, request_id: str, num_pages: int) -> list[int]:
        """Return *num_pages* more device pages for the request, all or none, behind those it has.

        Raises:
            TierFull: requests and transfers hold the rest.
        """
        request = self._admitted(request_id)
        pages = self._room.allocate(num_pages)
        request.pages += pages
        return pages

    def pages(self, request_id: str) -> list[int]:
        """Return the device pages of the request, in the order of its tokens."""
        return list(self._admitted(request_id).pages)

    @rank_consensus(same_params="request_id", same_results="len(result)")
    def commit(self, request_id: str, tokens: Iterable[int]) -> list[int]:
        """Make the full pages of *tokens* everybody's and return the request's pages from now on.

        Where another request has computed the same pages meanwhile, its pages take the place of this one's, with
        the same content.

        Args:
            tokens: what the request has KV of: its prompt, or a part of it, and what it has generated.

        Raises:
            InvariantError: the request has fewer pages than *tokens* have.
        """
        request = self._admitted(request_id)
        key = Key.of(tokens, self.tree.page_tokens, seed=request.key.seed)
        if key.num_pages > len(request.pages):
            raise InvariantError(f"{request_id!r} has {len(request.pages)} pages, its tokens fill {key.num_pages}")
        key = self._prefixes.arrived(key)
        count = key.num_pages
        if count <= request.num_shared:
            return list(request.pages)
        start = request.num_shared
        result = self.tree.insert(
            key, request.pages[start:count], self._prefixes.tick(), first_page=start, priority=request.priority
        )
        if result.refused:
            return list(request.pages)
        self.tree.lock(result.node, Tier.DEVICE)
        self.tree.unlock(self._locked(request), Tier.DEVICE)
        request.node = result.node
        if result.unused:
            request.pages[:count] = self.tree.match(key).device_pages()
            self._device.free(result.unused)
        request.num_shared = count
        self._policy.used(result.node)
        return list(request.pages)

    @rank_consensus(same_params="request_id")
    def finish(self, request_id: str, tokens: Iterable[int]) -> None:
        """`commit` *tokens*, then let go of everything that the request holds."""
        self.commit(request_id, tokens)
        self._release(request_id)

    @rank_consensus(same_params="request_id")
    def abort(self, request_id: str) -> None:
        """End the request in whatever state it is; what it holds is let go of, now or when its prefetch ends.

        Without such a request, or after its end, does nothing: a client may give up at any time.
        """
        if request_id in self._requests:
            self._release(request_id)

    # -- the scheduler's step --------------------------------------------------------------

    @rank_consensus
    def step(self) -> None:
        """Apply what the first stage has seen finish: backups, loads, prefetches, writes.

        Every rank calls it, the ranks of the first stage at the same time, those of the others when they come to it.

        Raises:
            RankFailure: a rank is gone, or does not do what the others do; later on the others too.
        """
        name = "step" if self._link is None else "step with a store"
        counts = self._sync.agree(name, self._ready_counts, 5)
        self._backups.take(counts[0])
        self._loads.take(counts[1])
        if self._link is not None:
            self._link.take(*counts[2:])

    @rank_consensus
    def settle(self) -> None:
        """Wait until nothing is on its way any more, L3 writes and prefetches included. Every rank calls it.

        Raises:
            RankFailure: as `step` does.
        """
        self._sync.same("settle", (self._backups.num_running, self._loads.num_running, len(self._requests)))
        self._backups.settle()
        self._loads.settle()
        while self._link is not None and (self._link.settle() or self._backups.settle()):
            pass

    # -- the store -------------------------------------------------------------------------

    @property
    def is_attached(self) -> bool:
        return self._link is not None

    @rank_consensus
    def attach(self, connection: StoreConnection) -> None:
        """Use a store from now on. Pages that are on the host go to it at their next use. Every rank calls it.

        Raises:
            InvariantError: one is attached.
            RankFailure: on every rank, if some only read the store, or one cannot attach it; nothing is attached then.
        """
        if self._link is not None:
            raise InvariantError("a store is attached already; detach it first")
        link = agree_link(
            connection,
            lambda: StoreLink(
                connection,
                self.tree,
                self._host,
                self.options,
                ranks=self._ranks,
                counters=self.counters,
                clock=self._clock,
            ),
        )
        link.on_stored = self._policy.go_on
        self._link = self._policy.link = link
        self._room.feeds_store = connection.writes

    @rank_consensus
    def detach(self) -> None:
        """Finish what is being written, stop what is being fetched, and use no store any more. Every rank calls it.

        What is known of the store's content is forgotten. Without a store, does nothing.
        """
        link = self._link
        self._link = self._policy.link = None
        self._room.feeds_store = False
        if link is not None:
            link.close()
            self._policy.forget()
            self.tree.forget_stored()

    @rank_consensus(same_params=True)
    def flush(self, tier: Tier | None = None) -> None:
        """Forget what nobody uses of *tier*, or every prefix of device and host; the store keeps what it has.

        Raises:
            InvariantError: without *tier*, a request has not ended; nothing is forgotten.
        """
        if tier is None and self._requests:
            raise InvariantError(f"{len(self._requests)} requests have not ended, {next(iter(self._requests))!r} first")
        self.settle()
        gone = self.tree.reset() if tier is None else self.tree.evict(tier, self.tree.num_held(tier), copies=True)
        self._device.free(gone.device_pages)
        self._host.slots.free(gone.host_pages)
        self._policy.forget()

    @rank_consensus(same_results=True)
    def flush_store(self) -> int:
        """Delete the namespace from the attached store; return how many objects all ranks have deleted, 0 without a store.

        Every rank calls it and waits for all others; between them they delete each object once.

        Raises:
            RankFailure: on every rank, if one could not. What was deleted is gone, and the controllers go on alike.
        """
        return 0 if self._link is None else self._link.clear()

    def close(self) -> None:
        """Bring everything under way to its end, use no store any more, and end the threads. Every rank calls it.

        The threads end also where it raises.

        Raises:
            RankFailure: as `step` does.
        """
        with ExitStack() as ends:
            ends.callback(self._loads.close)
            ends.callback(self._backups.close)
            ends.callback(self.detach)
            self.settle()

    def check(self, *, hashes: bool = False) -> None:
        """Count every book again; for an idle engine, and for tests after every step.

        Raises:
            InvariantError: the first thing that does not add up.
        """
        own = [page for request in self._requests.values() for page in request.own_pages]
        fetched = self._link.fetches.held_pages() if self._link is not None else []
        self._device.check()
        self._host.slots.check()
        check(
            self.tree,
            device_pages=without(self._device.held_pages(), own, "device"),
            host_pages=without(self._host.slots.held_pages(), fetched, "host"),
            hashes=hashes,
        )
        if self._link is not None:
            self._link.fetches.check()

    # -- decisions -------------------------------------------------------------------------

    def _waits(self, fetch: RequestFetch) -> bool:
        """Return whether the request of *fetch* should wait for it: the first stage says so, since clocks differ."""
        timeout_s = self.options.prefetch_timeout_s(fetch.reserved * self.tree.page_tokens)
        if timeout_s is None:
            return True
        if timeout_s == 0:
            return False
        if fetch.deadline_s is None:
            fetch.deadline_s = self._clock() + timeout_s
        deadline_s = fetch.deadline_s
        return self._sync.decide("prefetch wait", lambda: self._clock() < deadline_s)

    # -- small things ----------------------------------------------------------------------

    def _ready_counts(self) -> tuple[int, ...]:
        stored = (0, 0, 0) if self._link is None else self._link.ready()
        return (self._backups.ready(), self._loads.ready(), *stored)

    def _relieve_host(self) -> bool:
        return self._backups.settle() or (self._link is not None and self._link.settle_write())

    def _release(self, request_id: str) -> None:
        request = self._requests.pop(request_id)
        if self._link is not None and request.fetch is not None and not request.fetch.is_done:
            self._link.fetches.stop(request.fetch)
        self._device.free(request.own_pages)
        if request.node is not None:
            self.tree.unlock(request.node, Tier.DEVICE)

    def _request(self, request_id: str) -> Request:
        request = self._requests.get(request_id)
        if request is None:
            raise InvariantError(f"request {request_id!r} has not arrived, or has ended")
        return request

    def _admitted(self, request_id: str) -> Request:
        request = self._request(request_id)
        self._locked(request)
        return request

    def _locked(self, request: Request) -> Node:
        if request.node is None:
            raise InvariantError(f"request {request.request_id!r} is not admitted")
        return request.node
