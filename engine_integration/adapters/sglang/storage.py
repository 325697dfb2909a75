"""The class that SGLang loads: its calls, turned into those of our client, and nothing of its own decided."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from torch import Tensor

from hicache_storage import telemetry
from hicache_storage.engine_integration.adapters.sglang.engine import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
    StorageMetrics,
)
from hicache_storage.engine_integration.adapters.sglang.facts import EngineModel, RankFacts
from hicache_storage.engine_integration.adapters.sglang.hits import SideHits, restorable
from hicache_storage.engine_integration.adapters.sglang.host_pool import HostPool
from hicache_storage.engine_integration.adapters.sglang.options import read_options
from hicache_storage.engine_integration.adapters.sglang.plan import PartPlanner
from hicache_storage.engine_integration.adapters.sglang.pools import PoolBuilder
from hicache_storage.engine_integration.adapters.sglang.stats import TransferStats
from hicache_storage.engine_integration.adapters.sglang.stored_pool import StoredPool
from hicache_storage.errors import LayoutError
from hicache_storage.telemetry import Counters, RareWarnings

T = TypeVar("T")
_Move: TypeAlias = Callable[[StoredPool, Sequence[str], Tensor | None, Sequence[str]], list[bool]]

_log = logging.getLogger(__name__)


class HiCacheUnified(HiCacheStorage):  # type: ignore[misc] # SGLang has no types
    """Our stores, keys and verification behind SGLang's ``dynamic`` storage backend.

    SGLang calls it from its scheduler (construction, registration, statistics) and from one thread each for
    existence, reads and writes. Construction and registration raise for what is wrong; from then on nothing
    raises: a failure is a miss or a page that is not stored, and is counted.

    Raises:
        ConfigError: an option is wrong or missing.
        LayoutError: this deployment's pages cannot be stored right.
        StoreError: the store cannot be opened.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Mapping[str, object] | None = None) -> None:
        del kwargs
        rank = RankFacts.of(storage_config)
        options = read_options(storage_config.extra_config)
        planner = PartPlanner(rank, options, EngineModel(), storage_config.model_name)
        if not (storage_config.extra_config or {}).get("interface_v1"):
            _log.warning("sglang.copying reason=%s", "interface_v1 is not set, so SGLang copies every page once more")
        self.counters = Counters()
        self._warnings = RareWarnings(_log)
        self._has_metrics = storage_config.enable_storage_metrics
        self._sides: dict[str, StoredPool] = {}
        self._anchor: StoredPool | None = None
        self._stats: TransferStats | None = None
        self._store = options.open()
        self._builder = PoolBuilder(self._store, planner, rank, options, self.counters)

    # -- registration: raises ----------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: HostPool) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._anchor = self._builder.anchor(mem_pool_host)
        self._stats = TransferStats(self._anchor.page_nbytes) if self._has_metrics else None

    def register_mem_host_pool_v2(self, host_pool: HostPool, host_pool_name: str) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if host_pool_name != PoolName.KV:
            self._sides[str(host_pool_name)] = self._builder.side(str(host_pool_name), host_pool)
        elif host_pool is not self.mem_pool_host:
            self.register_mem_pool_host(host_pool)

    # -- K and V -----------------------------------------------------------------------------

    def batch_exists(self, keys: Sequence[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        del extra_info
        return self._answer("exists", lambda: self._kv.lookup(keys), otherwise=0)

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_get_v1(
        self, keys: Sequence[str], host_indices: Tensor | None, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        return self._answer(
            "get", lambda: self._read(keys, host_indices, _prefix_of(extra_info)), otherwise=[False] * len(keys)
        )

    def batch_set_v1(
        self, keys: Sequence[str], host_indices: Tensor | None, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        return self._answer(
            "set", lambda: self._write(keys, host_indices, _prefix_of(extra_info)), otherwise=[False] * len(keys)
        )

    # -- K and V with companions -------------------------------------------------------------

    def batch_exists_v2(
        self,
        keys: Sequence[str],
        pool_transfers: Sequence[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        del extra_info
        return self._answer(
            "exists_v2", lambda: self._hits(keys, pool_transfers or ()), otherwise=PoolTransferResult(0, {}, [])
        )

    def batch_get_v2(
        self, transfers: Sequence[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        return self._each(transfers, "get_v2", extra_info, StoredPool.read)

    def batch_set_v2(
        self, transfers: Sequence[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        return self._each(transfers, "set_v2", extra_info, StoredPool.write)

    # -- the copying interface: for a configuration without interface_v1 ------------------------

    def get(self, key: str, target_location: Tensor | None = None, target_sizes: object | None = None) -> Tensor | None:
        del target_sizes
        target = self._answer("get", self._empty_page, otherwise=None) if target_location is None else target_location
        return None if target is None else self.batch_get([key], [target])[0]

    def batch_get(
        self, keys: Sequence[str], target_locations: Sequence[Tensor] | None = None, target_sizes: object | None = None
    ) -> list[Tensor | None]:
        del target_sizes
        targets = target_locations
        if targets is None:
            return [self.get(key) for key in keys]
        read = self._answer("get", lambda: self._kv.read_flat(keys, targets), otherwise=[False] * len(keys))
        return [target if ok else None for target, ok in zip(targets, read, strict=True)]

    def set(
        self,
        key: str,
        value: Tensor | None = None,
        target_location: object | None = None,
        target_sizes: object | None = None,
    ) -> bool:
        del target_location, target_sizes
        return value is not None and self.batch_set([key], [value])

    def batch_set(
        self,
        keys: Sequence[str],
        values: Sequence[Tensor] | None = None,
        target_locations: object | None = None,
        target_sizes: object | None = None,
    ) -> bool:
        del target_locations, target_sizes
        if values is None:
            return False
        return all(self._answer("set", lambda: self._kv.write_flat(keys, values), otherwise=[False]))

    # -- the rest ----------------------------------------------------------------------------

    def clear(self) -> None:
        """Delete every object of this deployment's namespaces, and nothing else."""
        for pool in self._pools():
            for part in pool.parts:
                self._answer("clear", part.client.clear, otherwise=0)

    def get_stats(self) -> StorageMetrics | None:
        return None if self._stats is None else self._stats.take()

    def close(self) -> None:
        """Release the store and its memory; later calls find and store nothing."""
        self._answer("close", self._builder.close, otherwise=None)
        self._answer("close", self._store.close, otherwise=None)

    @property
    def _kv(self) -> StoredPool:
        if self._anchor is None:
            raise LayoutError("no host pool is registered")
        return self._anchor

    def _empty_page(self) -> Tensor | None:
        page: Tensor = self.mem_pool_host.get_dummy_flat_data_page()
        return page

    def _pools(self) -> list[StoredPool]:
        return [*([] if self._anchor is None else [self._anchor]), *self._sides.values()]

    def _read(self, keys: Sequence[str], host_indices: Tensor | None, prefix: Sequence[str]) -> list[bool]:
        if self._stats is None:
            return self._kv.read(keys, host_indices, prefix)
        with self._stats.reading() as pages:
            read = self._kv.read(keys, host_indices, prefix)
            pages.append(sum(read))
        return read

    def _write(self, keys: Sequence[str], host_indices: Tensor | None, prefix: Sequence[str]) -> list[bool]:
        if self._stats is None:
            return self._kv.write(keys, host_indices, prefix)
        with self._stats.writing() as pages:
            stored = self._kv.write(keys, host_indices, prefix)
            pages.append(sum(stored))
        return stored

    def _hits(self, keys: Sequence[str], transfers: Sequence[PoolTransfer]) -> PoolTransferResult:
        kv_pages = self._kv.lookup(keys)
        sides = []
        # A pool of block groups never limits a prefix, and what is not reported is no verdict.
        for transfer in (one for one in transfers if one.hit_policy != PoolHitPolicy.BLOCK_GROUPS):
            pool = self._pool_of(transfer)
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                found = pool.lookup(keys[:kv_pages])
                sides.append(SideHits(transfer.name, [page < found for page in range(kv_pages)], None))
            else:
                window = max(1, len(transfer.keys or ()))
                sides.append(SideHits(transfer.name, pool.present(keys[:kv_pages]), window))
        points, longest = restorable(kv_pages, sides)
        own = {PoolName.KV: kv_pages} if kv_pages else {}
        return PoolTransferResult(points[-1] if points else 0, {**own, **longest}, points)

    def _each(
        self,
        transfers: Sequence[PoolTransfer],
        op: str,
        extra_info: HiCacheStorageExtraInfo | None,
        do: _Move,
    ) -> dict[str, list[bool]]:
        """Return what *do* makes of each pool's pages; the failure of one pool is none of the others'."""
        results: dict[str, list[bool]] = {}
        for transfer in transfers:
            call = partial(self._moved, transfer, _prefix_of(extra_info), do)
            results[transfer.name] = self._answer(op, call, otherwise=[False] * len(transfer.keys or ()))
        return results

    def _moved(self, transfer: PoolTransfer, prefix: Sequence[str], do: _Move) -> list[bool]:
        # In front of a tail there need not be any page of its pool.
        front = prefix if transfer.hit_policy == PoolHitPolicy.ALL_PAGES else ()
        return do(self._pool_of(transfer), transfer.keys or (), transfer.host_indices, front)

    def _pool_of(self, transfer: PoolTransfer) -> StoredPool:
        if transfer.name == PoolName.KV:
            return self._kv
        pool = self._sides.get(str(transfer.name))
        if pool is None:
            raise LayoutError(f"no host pool {str(transfer.name)!r} is registered")
        return pool

    def _answer(self, op: str, call: Callable[[], T], *, otherwise: T) -> T:
        """Return what *call* does, or *otherwise* where it fails: SGLang's threads have no use for an exception."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the one place where a fault of the adapter becomes a miss
            cause = f"{telemetry.ADAPTER_FAILED}.{op}.{type(error).__name__}"
            self.counters.add(cause)
            self._warnings.warn(cause, "sglang.failed op=%s reason=%s", op, error, exc_info=True)
            return otherwise


def _prefix_of(extra_info: HiCacheStorageExtraInfo | None) -> Sequence[str]:
    return () if extra_info is None else extra_info.prefix_keys or ()
