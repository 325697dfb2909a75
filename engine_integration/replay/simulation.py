"""A trace through a deployment: which tier would have had how much of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Self
from uuid import uuid4

from hicache_storage.engine_integration.controller import Controller, NoCopies, Pools, StoreConnection
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.engine_integration.replay.bound import ReuseBound
from hicache_storage.engine_integration.replay.clock import Clock
from hicache_storage.engine_integration.replay.coded import CodedMemory
from hicache_storage.engine_integration.replay.instance import Instance
from hicache_storage.engine_integration.replay.key_store import KeyClient, KeyStore
from hicache_storage.engine_integration.replay.options import ReplayOptions
from hicache_storage.engine_integration.replay.report import InstanceReport, Report, Served, report_of
from hicache_storage.engine_integration.replay.trace import Trace
from hicache_storage.engine_integration.store_tier.page_group import PageGroup, Part
from hicache_storage.engine_integration.tiers.slots import PageAllocator
from hicache_storage.errors import InvariantError
from hicache_storage.layout import Namespace, Topology
from hicache_storage.store import ObjectStore
from hicache_storage.telemetry import Counters

_NO_BYTES = memoryview(b"")


class Replay:
    """Instances that serve a trace in turn, and the L3 that they share. Use it in a ``with`` statement.

    Args:
        backend: where coded KV goes to, in namespaces of this replay alone, which it deletes at its end if the
            store can list; stays the caller's. None replays without bytes, in an L3 that knows names only.

    Attributes:
        served: what became of each request so far.
    """

    def __init__(self, trace: Trace, options: ReplayOptions, *, backend: ObjectStore | None = None) -> None:
        self.served: list[Served] = []
        self._trace = trace
        self._options = options
        self._backend = backend
        self._run_id = uuid4().hex
        self._clock = Clock()
        self._keys = KeyStore(options.store_pages())
        self._bound = ReuseBound(options.shape.page_tokens, trace.summary.block_tokens)
        self._instances = [self._instance(topology) for topology in options.topologies]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Ctrl-C may have left books half written; what matters then is that threads end and nothing is left behind.
        with suppress(InvariantError) if error is not None else nullcontext():
            self.close()

    def run(self) -> Iterator[Served]:
        """Serve request after request, end them all, and count every book.

        Raises:
            InvariantError: the books do not add up.
            ConfigError: the trace cannot be read any more.
        """
        every = self._options.check_every
        for number, request in enumerate(self._trace):
            self._clock.advance_to(request.arrival_s)
            index = number % len(self._instances)
            reusable = self._bound.take(request)
            cached = self._instances[index].serve(request)
            self.served.append(Served(index, len(request.tokens), cached, reusable))
            if every and (number + 1) % every == 0:
                self.check()
            yield self.served[-1]
        for instance in self._instances:
            instance.drain()
        self.check()

    def check(self) -> None:
        """Count every book of every instance again.

        Raises:
            InvariantError: the first thing that does not add up.
        """
        for instance in self._instances:
            instance.controller.check()

    def report(self) -> Report:
        """Return what was found so far."""
        return Report(
            instances=[self._instance_report(index) for index in range(len(self._instances))],
            reusable_tokens=sum(one.reusable for one in self.served),
            store_pages=len(self._keys) if self._backend is None else None,
            store_evicted=self._keys.num_evicted if self._backend is None else None,
        )

    def close(self) -> None:
        """End every thread, and delete what a real store holds of this replay."""
        for instance in self._instances:
            instance.controller.detach()
        if self._backend is None or not self._backend.capabilities.listing:
            return
        for topology in {self._scope(topology): topology for topology in self._options.topologies}.values():
            layout, _ = self._options.layouts(topology)[0]
            PageStore(self._backend, self._namespace(topology), layout, read_only=True).clear()

    def _instance(self, topology: Topology) -> Instance:
        options, counters = self._options, Counters()
        layouts = options.layouts(topology)
        rank_nbytes = [layout.page_nbytes for layout, _ in layouts]
        num_device = options.device_pages(self._trace.summary, sum(rank_nbytes))
        num_host = options.host_pages(self._trace.summary, rank_nbytes)
        device, host = PageAllocator(num_device), PageAllocator(num_host)
        if self._backend is None:
            memory, pools = None, Pools(device, host, NoCopies(), NoCopies())
            pages = PageGroup(Part("kv", self._key_client(topology, sum(rank_nbytes), counters), _no_bytes))
        else:
            memory = CodedMemory(layouts, device_pages=num_device, host_pages=num_host)
            pools = Pools(device, host, memory.backup, memory.load)
            pages = memory.connect(self._backend, self._namespace(topology), counters)
        controller = Controller(
            options.shape.page_tokens, pools, options=options.tiers, counters=counters, clock=self._clock
        )
        controller.attach(StoreConnection(pages))
        return Instance(controller, device, memory, options.concurrency)

    def _key_client(self, topology: Topology, read_nbytes: int, counters: Counters) -> KeyClient:
        tokens_per_s, page_tokens = self._options.store_tokens_per_s, self._options.shape.page_tokens

        def pass_time(pages: int) -> None:
            if tokens_per_s is not None:
                self._clock.advance(pages * page_tokens / tokens_per_s)

        return KeyClient(
            self._keys,
            counters,
            scope=self._scope(topology),
            read_nbytes=read_nbytes,
            stored_nbytes=self._options.shape.page_nbytes,
            after_read=pass_time,
        )

    def _scope(self, topology: Topology) -> str:
        """Return what keys name besides the page."""
        return f"_{topology.name}" if self._options.key_scheme == "rank-suffix" else ""

    def _namespace(self, topology: Topology) -> Namespace:
        model_id = f"replay-{self._run_id}{self._scope(topology)}"
        return Namespace.of(model_id=model_id, shape=self._options.shape, grid=self._options.grid)

    def _instance_report(self, index: int) -> InstanceReport:
        instance, topology = self._instances[index], self._options.topologies[index]
        page_nbytes = sum(layout.page_nbytes for layout, _ in self._options.layouts(topology))
        mine = [one for one in self.served if one.instance == index]
        judged = (0, 0) if instance.memory is None else (instance.memory.num_judged, instance.memory.num_wrong)
        return report_of(topology.name, mine, instance.controller.counters.snapshot(), page_nbytes, judged)


def _no_bytes(page: int) -> memoryview:  # noqa: ARG001 - every page has none
    return _NO_BYTES
