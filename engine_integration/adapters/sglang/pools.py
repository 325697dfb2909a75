"""Host pools as they are registered: planned, refused where they cannot be served right, and given their objects."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from hicache_storage.engine_integration.adapters.sglang.engine import PoolName
from hicache_storage.engine_integration.adapters.sglang.facts import PoolFacts, RankFacts
from hicache_storage.engine_integration.adapters.sglang.host_pool import (
    Buffer,
    HostPool,
    TensorForm,
    facts_of,
    is_kv_pool,
)
from hicache_storage.engine_integration.adapters.sglang.opaque import OpaquePages
from hicache_storage.engine_integration.adapters.sglang.options import AdapterOptions
from hicache_storage.engine_integration.adapters.sglang.pages import ArrangedPages, HostPages, PagesInPlace
from hicache_storage.engine_integration.adapters.sglang.plan import PartPlan, PartPlanner
from hicache_storage.engine_integration.adapters.sglang.stored_pool import StoredPart, StoredPool
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.errors import LayoutError
from hicache_storage.store import ObjectStore
from hicache_storage.telemetry import Counters

_HYBRID = {PoolName.SWA, PoolName.AUXILIARY_SWA, PoolName.MAMBA}
"""Pools of models whose layers are of several kinds."""

_log = logging.getLogger(__name__)


class PoolBuilder:
    """Makes a `StoredPool` of each host pool that is registered."""

    def __init__(
        self, store: ObjectStore, planner: PartPlanner, rank: RankFacts, options: AdapterOptions, counters: Counters
    ) -> None:
        self._store = store
        self._planner = planner
        self._rank = rank
        self._options = options
        self._counters = counters
        self._copier = ThreadPoolExecutor(max_workers=2, thread_name_prefix="hicache-copy")
        self._registered: list[memoryview] = []

    def anchor(self, pool: HostPool) -> StoredPool:
        """Return the pool of the model's own KV.

        Raises:
            ConfigError, LayoutError: it cannot be served right; the message says what would help.
        """
        if is_kv_pool(pool):
            facts = facts_of(pool)
            return self._kv_pool("kv", pool, facts, self._planner.anchor(facts))
        if self._options.key_scheme != "rank-suffix":
            raise LayoutError(
                f"a host pool of type {type(pool).__name__} and layout {pool.layout} holds more than rows of K and V: "
                "its pages have no form that other topologies could read; key_scheme = 'rank-suffix' stores them as they are"
            )
        return self._opaque_pool("kv", pool, is_sharded=not self._rank.is_replicated)

    def side(self, name: str, pool: HostPool) -> StoredPool:
        """Return a pool that accompanies the model's own. Raises as `anchor` does."""
        unified = self._options.key_scheme == "unified"
        if name in _HYBRID and self._rank.pp_size > 1 and unified:
            raise LayoutError(
                f"with a {name} pool and {self._rank.pp_size} pipeline stages SGLang does not number the model's layers: "
                "set key_scheme to rank-suffix, or run one stage"
            )
        if not is_kv_pool(pool):
            is_sharded = name == PoolName.MAMBA or not self._rank.is_replicated
            return self._opaque_pool(name, pool, is_sharded=is_sharded)
        facts = facts_of(pool)
        if self._rank.is_replicated and self._rank.tp_size > 1 and not facts.is_mla:
            raise LayoutError(
                f"SGLang has TP rank 0 alone write the {name} pool of an MLA model, and its heads differ from rank to "
                "rank: no other rank would ever find its own; run one TP rank, or without the storage backend"
            )
        return self._kv_pool(name, pool, facts, [self._planner.companion(name, facts)])

    def close(self) -> None:
        """Withdraw all memory from the store, and end the copying threads."""
        self._copier.shutdown()
        for memory in self._registered:
            self._store.unregister_memory(memory)
        self._registered.clear()

    def _kv_pool(self, name: str, pool: HostPool, facts: PoolFacts, plans: list[PartPlan]) -> StoredPool:
        parts = [self._kv_part(name, pool.kv_buffer, facts, plan) for plan in plans]
        return StoredPool(name, facts.page_tokens, parts, pool.kv_buffer)

    def _kv_part(self, name: str, buffer: Buffer, facts: PoolFacts, plan: PartPlan) -> StoredPart:
        client = self._client(plan)
        form = TensorForm(facts, plan.pool_layers)
        pages: HostPages | None = None
        if isinstance(buffer, Tensor) and client.reads_in_place:
            pages = PagesInPlace.of(facts, plan.pool_layers, plan.layout.group_heads, buffer)
        if pages is None:
            pages = ArrangedPages(form.view(buffer), plan.layout, self._options.scratch_nbytes, self._copier)
        self._register(pages)
        self._tell(name, plan, client, "in place" if isinstance(pages, PagesInPlace) else "arranged")
        return StoredPart(client, pages, form, plan.writes)

    def _opaque_pool(self, name: str, pool: HostPool, *, is_sharded: bool) -> StoredPool:
        pages = OpaquePages(pool, self._options.scratch_nbytes)
        form = f"{type(pool).__name__}-{pool.layout}-{pool.dtype}"
        plan = self._planner.opaque(name, form, pages.page_nbytes, is_sharded=is_sharded)
        client = self._client(plan)
        self._tell(name, plan, client, "as they are")
        return StoredPool(name, pool.page_size, [StoredPart(client, pages, None, plan.writes)])

    def _client(self, plan: PartPlan) -> PageStore:
        return PageStore(self._store, plan.namespace, plan.layout, read_only=not plan.writes, counters=self._counters)

    def _register(self, pages: HostPages) -> None:
        if self._store.capabilities.memory_registration:
            for memory in pages.memory():
                self._store.register_memory(memory)
                self._registered.append(memory)

    def _tell(self, name: str, plan: PartPlan, client: PageStore, how: str) -> None:
        _log.info(
            "sglang.attached pool=%s backend=%s namespace=%s objects_per_page=%d writes=%s pages=%s",
            name,
            self._store.name,
            plan.namespace.digest,
            client.objects_per_page,
            plan.writes,
            how,
        )
