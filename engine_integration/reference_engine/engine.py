"""One rank of an engine: its model, its tiers, its scheduler. Commands in, events out, in step with the other ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from hicache_storage.engine_integration.reference_engine import counted
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig, StoreTarget
from hicache_storage.engine_integration.reference_engine.forward import Forward
from hicache_storage.engine_integration.reference_engine.messages import (
    Abort,
    Answered,
    Attach,
    Command,
    Detach,
    Event,
    Flush,
    Generate,
    Report,
    Shutdown,
    Token,
)
from hicache_storage.engine_integration.reference_engine.model import kv_dtype, load_stage
from hicache_storage.engine_integration.reference_engine.peers import Peers
from hicache_storage.engine_integration.reference_engine.rank_names import reasons_by_name
from hicache_storage.engine_integration.reference_engine.rank_tiers import RankTiers
from hicache_storage.engine_integration.reference_engine.scheduler import Limits, Scheduler
from hicache_storage.engine_integration.reference_engine.sizes import kv_shape
from hicache_storage.engine_integration.reference_engine.store_parts import store_role
from hicache_storage.errors import AccessDenied, ConfigError, HiCacheError, RankFailure
from hicache_storage.telemetry import Counters


class EngineRank:
    """One rank. Every rank is given the same commands in the same steps, and has the same events.

    Raises:
        ConfigError: the model, the topology or the tiers cannot be had as configured.
        RankFailure: they cannot on another rank.
    """

    def __init__(self, config: EngineConfig, peers: Peers) -> None:
        self.is_done = False
        self._peers = peers
        self._counters = Counters()
        tp_rank, pp_rank = peers.tp_rank, peers.pp_rank
        stage = load_stage(config, peers.tensor_sum, tp_rank=tp_rank, pp_rank=pp_rank)
        pool = stage.new_pool(config.device_pages, config.page_tokens, kv_dtype(config))
        role = store_role(config, kv_shape(config), tp_rank=tp_rank, pp_rank=pp_rank)
        self.tiers = RankTiers(config, pool, role, peers, self._counters)
        limits = Limits(
            chunk_tokens=config.chunk_tokens,
            max_running=config.max_running,
            max_tokens=stage.config.max_tokens,
            vocab_size=stage.config.vocab_size,
            eos_tokens=frozenset(stage.config.eos_token_ids),
            shares_cache=config.cache != "off",
        )
        # Every rank's scheduler counts the same.
        counters = self._counters if self._is_first else Counters()
        forward = Forward(stage, pool, peers)
        self.scheduler = Scheduler(self.tiers.controller, self.tiers.device, forward, limits, counters)
        self._events: list[Event] = []
        self._flushes: list[Flush] = []
        self._held: list[Generate] = []
        if config.store is not None:
            self.tiers.attach(config.store)

    @property
    def is_idle(self) -> bool:
        """No request is in the engine."""
        return self.scheduler.is_idle and not self._held

    def step(self, commands: Sequence[Command]) -> bool:
        """Carry out *commands*, then one step; say whether anything was computed. A collective."""
        for command in commands:
            self._take(command)
        computed = self.scheduler.step()
        self._events += self.scheduler.take_events()
        if self._flushes and self.scheduler.is_idle:
            self._flush()
        return computed

    def take_events(self) -> list[Event]:
        """Return what has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """End every request, write what is under way, and give everything back. A collective."""
        self.scheduler.abort_all()
        self._events += self.scheduler.take_events()
        self.tiers.close()

    @property
    def _is_first(self) -> bool:
        return self._peers.tp_rank == self._peers.pp_rank == 0

    def _take(self, command: Command) -> None:
        match command:
            case Generate():
                self._generate(command)
            case Abort():
                self._abort(command)
            case Flush():
                self._flushes.append(command)
            case Attach():
                self._attach(command)
            case Detach():
                self.tiers.detach()
                self._events.append(Answered(command.command_id))
            case Report():
                self._events.append(Answered(command.command_id, counters=self._report()))
            case Shutdown():
                self.is_done = True
        self._events += self.scheduler.take_events()

    def _generate(self, command: Generate) -> None:
        # What came after a flush waits for it: under steady load it would never be its turn.
        if self._flushes:
            self._held.append(command)
        else:
            self.scheduler.generate(command)

    def _abort(self, command: Abort) -> None:
        held = [one for one in self._held if one.request_id == command.request_id]
        for one in held:
            self._held.remove(one)
            self._events.append(Token(one.request_id, -1, "abort"))
        self.scheduler.abort(command.request_id)

    def _flush(self) -> None:
        self.tiers.controller.flush()
        self._events += [Answered(flush.command_id) for flush in self._flushes]
        held, self._held, self._flushes = self._held, [], []
        for command in held:
            self.scheduler.generate(command)
        self._events += self.scheduler.take_events()

    def _attach(self, command: Attach) -> None:
        target = StoreTarget(backend=command.backend, extra_config=command.extra_config)
        try:
            self.tiers.attach(target, must_answer=command.must_answer)
        except HiCacheError as error:
            self._events.append(self._not_attached(command.command_id, error))
        else:
            self._events.append(Answered(command.command_id))

    def _not_attached(self, command_id: int, error: HiCacheError) -> Answered:
        own = error.__cause__ if isinstance(error, RankFailure) else error
        if isinstance(error, RankFailure) and not isinstance(own, ConfigError):
            reason = reasons_by_name(error, self._peers.topology)
        else:
            # What is wrong is wrong for all ranks alike; of anything else it matters which rank says it.
            reason = str(own)
        return Answered(command_id, reason, is_wrong_config=isinstance(own, ConfigError | AccessDenied))

    def _report(self) -> dict[str, int]:
        """Return what all ranks have counted together, and how things stand."""
        mine = msgspec.msgpack.encode(self._counters.snapshot() | self._counters.times() | self.tiers.store_metrics())
        total: Counter[str] = Counter()
        for theirs in self._peers.gather(mine):
            total.update(msgspec.msgpack.decode(theirs, type=dict[str, int]))
        tiers = self.tiers
        return dict(total) | {
            counted.REQUESTS_RUNNING: self.scheduler.num_running,
            counted.REQUESTS_WAITING: self.scheduler.num_waiting + len(self._held),
            counted.DEVICE_PAGES: tiers.device.capacity,
            counted.DEVICE_PAGES_HELD: tiers.device.num_held,
            counted.HOST_PAGES: tiers.host.capacity,
            counted.HOST_PAGES_HELD: tiers.host.num_held,
            counted.STORE_ATTACHED: int(tiers.controller.is_attached),
        }
