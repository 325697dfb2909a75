"""The tiers of one rank: its device pool, its host pool, what copies between them, and the store, if there is one."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from hicache_storage.engine_integration.controller import Controller, Pools, StoreConnection
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.engine_integration.parallel.agree import Group, agree_made
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig, StoreTarget
from hicache_storage.engine_integration.reference_engine.peers import Peers
from hicache_storage.engine_integration.reference_engine.store_parts import StoreRole, check_answers, open_target
from hicache_storage.engine_integration.store_tier.page_group import PageGroup, Part
from hicache_storage.engine_integration.tiers.agreed_size import agree_host_pages
from hicache_storage.engine_integration.tiers.host import HostPool
from hicache_storage.engine_integration.tiers.sizing import HostSize, read_host_memory
from hicache_storage.engine_integration.tiers.slots import PageAllocator
from hicache_storage.engine_integration.transfer import Backup, Load
from hicache_storage.errors import ConfigError
from hicache_storage.kernels import DevicePool
from hicache_storage.middleware import store_counts
from hicache_storage.store import ObjectStore
from hicache_storage.telemetry import Counters

_DEFAULT_RATIO = 2.0
"""Host pages for each device page where no size is given, as SGLang has it."""

_NEVER = 1 << 40

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Host:
    """The host tier and what copies to and from it."""

    pool: HostPool
    backup: Backup
    load: Load

    @classmethod
    def beside(cls, device: DevicePool, num_pages: int, role: StoreRole) -> _Host:
        heads = role.layout.group_heads
        with ExitStack() as made:
            pool = HostPool(num_pages, role.layout.page_nbytes)
            made.callback(pool.close)
            backup = Backup(device, pool, group_heads=heads)
            made.callback(backup.close)
            host = cls(pool, backup, Load(device, pool, group_heads=heads))
            made.pop_all()
        return host

    def close(self) -> None:
        self.backup.close()
        self.load.close()
        self.pool.close()


@dataclass(frozen=True, slots=True)
class _Opened:
    store: ObjectStore
    pages: PageGroup


@dataclass(frozen=True, slots=True)
class _Attached:
    store: ObjectStore
    groups: list[Group]


class RankTiers:
    """What one rank caches, and where. Every method is called by all ranks, in the same order.

    Args:
        pool: the rank's device pool; the caller computes in it.
        role: what the rank has to do with a store.

    Attributes:
        controller: decides; the caller asks it.
        device: whose device page is whose; for looking.
        host: the same of the host; a single page that nobody uses where there is no host tier.
    """

    def __init__(
        self, config: EngineConfig, pool: DevicePool, role: StoreRole, peers: Peers, counters: Counters
    ) -> None:
        self._role = role
        self._peers = peers
        self._counters = counters
        self._attached: _Attached | None = None
        self._metrics_of_past_stores: Counter[str] = Counter()
        self._host: _Host | None = None
        self.device = PageAllocator(pool.num_pages)
        self.host = PageAllocator(1)
        options = _device_only(config.tiers)
        pools = Pools(self.device, self.host)
        if config.cache == "host":
            options = config.tiers
            num_pages = self._host_pages(config)
            self._host = agree_made(
                peers.group, "host tier", lambda: _Host.beside(pool, num_pages, role), lambda host: host.close()
            )
            self.host = self._host.pool.slots
            pools = Pools(self.device, self.host, self._host.backup, self._host.load)
        self.controller = Controller(config.page_tokens, pools, options=options, ranks=peers.ranks, counters=counters)

    def attach(self, target: StoreTarget, *, must_answer: bool = False) -> None:
        """Use a store from now on.

        Raises:
            ConfigError: there is one already, or no host tier.
            RankFailure: a rank could not open it, or it *must_answer* and did not answer one; no rank uses it then.
        """
        if self._host is None:
            raise ConfigError("this engine has no host tier, and a store is reached through it alone")
        if self._attached is not None:
            raise ConfigError("a store is attached already; detach it first")
        host = self._host.pool
        opened = agree_made(
            self._peers.group,
            "attach",
            lambda: self._open(target, host, must_answer=must_answer),
            lambda opened: _give_up(opened.store, host),
        )
        with ExitStack() as undo:
            undo.callback(_give_up, opened.store, host)
            probe, read, write = groups = self._peers.new_groups(3)
            undo.callback(self._peers.drop_groups, groups)
            self.controller.attach(StoreConnection(opened.pages, probe, read, write, writes=self._role.can_write))
            undo.pop_all()
        self._attached = _Attached(opened.store, groups)

    def detach(self) -> None:
        """Finish what is being written and use no store any more. Without a store, does nothing."""
        attached, self._attached = self._attached, None
        self.controller.detach()
        if attached is not None and self._host is not None:
            self._peers.drop_groups(attached.groups)
            _give_up(attached.store, self._host.pool)
            # A store may finish copies between its parts as it closes.
            self._metrics_of_past_stores.update(store_counts(attached.store))

    def store_metrics(self) -> dict[str, int]:
        """Return what the layers ``metrics`` around this rank's stores, and around their parts, have counted since the start."""
        total = Counter(self._metrics_of_past_stores)
        if self._attached is not None:
            total += store_counts(self._attached.store)
        return dict(total)

    def close(self) -> None:
        """Bring what is under way to its end, and give everything back."""
        self.controller.settle()
        self.detach()
        self.controller.close()
        if self._host is not None:
            self._host.close()

    def _open(self, target: StoreTarget, host: HostPool, *, must_answer: bool) -> _Opened:
        """Return the store, open, with access to the host's memory, and this rank's pages in it."""
        role, writes = self._role, self._role.is_elected and self._role.can_write
        store = open_target(target)
        try:
            if must_answer:
                check_answers(store, role.namespace)
            client = PageStore(store, role.namespace, role.layout, read_only=not writes, counters=self._counters)
            host.attach(store)
        except BaseException:
            store.close()
            raise
        return _Opened(store, PageGroup(Part("kv", client, host.page, writes=writes)))

    def _host_pages(self, config: EngineConfig) -> int:
        """Return the host pages of each rank: by the options, as many as every rank has room for."""
        tiers, topology = config.tiers, config.ranks
        given = (tiers.host_nbytes, tiers.host_ratio, tiers.host_memory_fraction)
        size = HostSize(
            nbytes=tiers.host_nbytes,
            ratio=_DEFAULT_RATIO if given == (None, None, None) else tiers.host_ratio,
            memory_fraction=tiers.host_memory_fraction,
            ranks=topology.tp * topology.pp,
        )
        page_nbytes = self._role.layout.page_nbytes

        def local() -> int:
            return size.num_pages(page_nbytes, device_pages=config.device_pages, memory=read_host_memory())

        return agree_host_pages(self._peers.group, config.page_tokens, local)


def _give_up(store: ObjectStore, host: HostPool) -> None:
    """Use *store* no more: an error of its end is this rank's alone and comes too late to change anything."""
    try:
        with closing(store):
            host.detach(store)
    except Exception:  # noqa: BLE001 - the SDK of any store, which may end in any way
        _log.warning("a store that is used no more did not close in order", exc_info=True)


def _device_only(tiers: TierOptions) -> TierOptions:
    """Return options under which nothing is ever copied to the host."""
    return replace(tiers, write_policy="write_through_selective", selective_hits=_NEVER)
