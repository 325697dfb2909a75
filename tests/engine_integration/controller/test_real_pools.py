"""Coded KV goes device -> host -> store -> host -> device on real pools and comes back exact, in another topology too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from hicache_storage.engine_integration.controller import CachedTokens, Controller, Pools, StoreConnection
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.engine_integration.parallel.pp import StepSync
from hicache_storage.engine_integration.parallel.ranks import Ranks
from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.engine_integration.store_tier.page_group import PageGroup, Part
from hicache_storage.engine_integration.tiers.host import HostPool, HostPoolOptions
from hicache_storage.engine_integration.tiers.slots import PageAllocator
from hicache_storage.engine_integration.transfer import Backup, Load
from hicache_storage.kernels import DevicePool
from hicache_storage.layout import Grid, KVShape, Namespace, ShardLayout, Topology
from hicache_storage.store import ObjectStore
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.page_store.coded import POISON, whole_page
from tests.engine_integration.parallel.pipeline import Place, places

PAGE_TOKENS = 4
DEVICE_PAGES, HOST_PAGES = 14, 24
PATIENCE_S = 60.0

T = TypeVar("T")
MHA = (KVShape.mha(num_layers=4, num_kv_heads=4, head_dim=4, dtype="float32", page_tokens=PAGE_TOKENS), Grid(2, 1))
MLA = (KVShape.mla(num_layers=4, latent_dim=12, dtype="float32", page_tokens=PAGE_TOKENS), Grid(2, 0))
FIRST, SECOND = range(10), range(20, 30)
OPTIONS = TierOptions(
    prefetch_policy="wait_complete",
    prefetch_threshold_tokens=PAGE_TOKENS,
    load_back_threshold_tokens=0,
    store_batch_pages=3,
)


def tokens_of(pages: Sequence[int]) -> list[int]:
    """Return a prompt whose page *n* has the KV that is coded for page *n*, and one token more."""
    return [page * PAGE_TOKENS + token for page in pages for token in range(PAGE_TOKENS)] + [9_999]


class Rank:
    """One rank's pools, tensors of whole slots, and its controller."""

    def __init__(
        self, layout: ShardLayout, client: PageStore, sync: StepSync, groups: list[ThreadGroup], *, writes: bool
    ) -> None:
        self.layout = layout
        self.shape = shape = layout.shape
        heads = () if shape.is_mla else (len(layout.shard.heads), shape.head_dim)
        width = heads or (1, shape.head_dim)
        slots = DEVICE_PAGES * PAGE_TOKENS
        planes = 1 if shape.is_mla else 2
        self.tensors = [
            [torch.full((slots, *width), POISON, dtype=torch.int32) for _ in layout.shard.layers] for _ in range(planes)
        ]
        pool = DevicePool.of_layers(self.tensors[0], self.tensors[1] if heads else [], PAGE_TOKENS)
        self.host = HostPool(HOST_PAGES, layout.page_nbytes, HostPoolOptions(pinned=False))
        group_heads = layout.group_heads if heads else 0
        self.backup = Backup(pool, self.host, group_heads=group_heads)
        self.load = Load(pool, self.host, group_heads=group_heads)
        self.device = PageAllocator(DEVICE_PAGES)
        backups, loads, probes, reads, writing = groups
        self.controller = Controller(
            PAGE_TOKENS,
            Pools(self.device, self.host.slots, self.backup, self.load),
            options=OPTIONS,
            ranks=Ranks(sync, backups, loads, PATIENCE_S),
            clock=lambda: 0.0,
        )
        pages = PageGroup(Part("kv", client, self.host.page, writes=writes))
        self.controller.attach(StoreConnection(pages, probes, reads, writing))

    def generate(self, pages: Sequence[int]) -> CachedTokens:
        """Serve a prompt; judge every byte of every page that it has in the end."""
        controller, tokens = self.controller, tokens_of(pages)
        controller.arrive("r", tokens)
        while not controller.ready("r"):
            controller.step()
        admission = controller.admit("r")
        for load in admission.loads:
            for layer in range(len(self.layout.shard.layers)):
                load.layers.wait(layer, PATIENCE_S)
        cached = len(admission.pages)
        mine = [*admission.pages, *controller.allocate("r", len(pages) - cached + 1)]
        for number, page in list(zip(pages, mine, strict=False))[cached:]:
            for tensor, coded in self.planes(number):
                tensor[self.slots(page)] = coded
        for number, page in zip(pages, mine, strict=False):
            for tensor, coded in self.planes(number):
                assert torch.equal(tensor[self.slots(page)], coded)
        controller.finish("r", tokens)
        controller.step()
        return admission.cached

    def planes(self, page: int) -> list[tuple[Tensor, Tensor]]:
        """Return each of the rank's tensors and what the slots of *page* must hold in it."""
        whole = whole_page(self.shape, page).view(np.int32)
        result = []
        for plane, tensors in enumerate(self.tensors):
            for layer, tensor in zip(self.layout.shard.layers, tensors, strict=True):
                rows: npt.NDArray[np.int32] = whole[layer][:, None] if self.shape.is_mla else whole[layer, plane]
                if not self.shape.is_mla:
                    rows = rows[:, self.layout.shard.heads.start : self.layout.shard.heads.stop]
                result.append((tensor, torch.from_numpy(np.ascontiguousarray(rows))))
        return result

    def slots(self, page: int) -> slice:
        return slice(page * PAGE_TOKENS, (page + 1) * PAGE_TOKENS)

    def close(self) -> None:
        self.controller.settle()
        self.controller.detach()
        self.controller.flush()
        self.controller.close()
        self.controller.check(hashes=True)
        assert (self.device.num_held, self.host.slots.num_held, self.host.slots.num_pinned) == (0, 0, 0)
        self.backup.close()
        self.load.close()
        self.host.close()


class Server:
    """All ranks of one topology, each with a thread of its own."""

    def __init__(self, store: ObjectStore, shape: KVShape, grid: Grid, topology: Topology) -> None:
        namespace = Namespace.of(model_id="coded", shape=shape, grid=grid)
        self.places = places(topology.pp, topology.tp)
        self.groups = [ThreadGroup.of(len(self.places), timeout_s=PATIENCE_S) for _ in range(5)]

        def made(place: Place) -> Rank:
            layout = ShardLayout(shape, grid, topology.shard(shape, tp_rank=place.tp_rank, pp_rank=place.stage))
            writes = topology.is_writer(shape, tp_rank=place.tp_rank)
            client = PageStore(store, namespace, layout, read_only=not writes)
            return Rank(layout, client, place.sync, [group[place.rank] for group in self.groups], writes=writes)

        self.ranks = self._on_all(made)

    def all(self, call: Callable[[Rank], T]) -> list[T]:
        return self._on_all(lambda place: call(self.ranks[place.rank]))

    def _on_all(self, call: Callable[[Place], T]) -> list[T]:
        def guarded(place: Place) -> T:
            try:
                return call(place)
            except BaseException:
                place.leave()
                for group in self.groups:
                    group[place.rank].leave()
                raise

        with ThreadPoolExecutor(len(self.places)) as pool:
            return list(pool.map(guarded, self.places))

    def generate(self, pages: Sequence[int]) -> CachedTokens:
        """Return what every rank found cached, the same on all of them."""
        (cached,) = set(self.all(lambda rank: rank.generate(pages)))
        return cached

    def forget(self) -> None:
        self.all(lambda rank: rank.controller.settle())
        self.all(lambda rank: rank.controller.flush())

    def close(self) -> None:
        self.all(lambda rank: rank.close())


@pytest.mark.parametrize("kind", ["mha", "mla"])
@pytest.mark.parametrize("writer", ["tp1", "tp2", "tp2pp2"])
def test_kv_that_goes_down_and_up_again_is_the_same_to_the_byte_in_every_topology(kind: str, writer: str) -> None:
    shape, grid = {"mha": MHA, "mla": MLA}[kind]
    store = MemoryStore()
    first = Server(store, shape, grid, Topology.parse(writer))

    assert first.generate(FIRST) == CachedTokens()
    assert first.generate(SECOND) == CachedTokens()
    again = first.generate(FIRST)
    assert (again.total, again.host > 0) == (10 * PAGE_TOKENS, True)
    first.forget()
    assert first.generate(FIRST).store == 10 * PAGE_TOKENS
    first.close()

    for reader in ("tp1", "tp2", "tp4", "tp1pp2", "tp4pp2"):
        second = Server(store, shape, grid, Topology.parse(reader))
        assert second.generate(FIRST) == CachedTokens(store=10 * PAGE_TOKENS)
        assert second.generate(SECOND) == CachedTokens(store=10 * PAGE_TOKENS)
        back = second.generate(FIRST)
        assert (back.total, back.host > 0) == (10 * PAGE_TOKENS, True)
        second.close()
