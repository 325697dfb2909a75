"""A request may be given up at any time, and whatever it held is somebody else's afterwards (F16, F25)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from hicache_storage.engine_integration.controller import CachedTokens
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.layout import page_hashes
from hicache_storage.testing.faults import Fault, FaultyStore, Gate
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.controller.engine import PAGE_TOKENS, Engine, prompt

PROMPT = prompt(*range(6), extra=1)
BEFORE = prompt(*range(100, 106), extra=1)
BUDGET = 12


class Server:
    """A server with nothing cached whose store holds two prompts; the budget has room for just them."""

    def __init__(self, prefetch: str = "best_effort") -> None:
        self.store = FaultyStore(MemoryStore())
        first = Engine(store=self.store)
        for tokens in (PROMPT, BEFORE):
            first.generate(tokens)
        first.close()
        options = TierOptions(
            prefetch_threshold_tokens=4,
            load_back_threshold_tokens=0,
            store_batch_pages=2,
            prefetch_policy=prefetch,  # type: ignore[arg-type]
        )
        self.engine = Engine(device_pages=24, host_pages=2 * BUDGET, store=self.store, options=options)
        self.controller = self.engine.controller
        self.gate = Gate()

    def hold_probes(self) -> None:
        """Make the next look into the store wait, and those behind it with it."""
        self.store.rescript([Fault("stat", "delay", nth=1, gate=self.gate)])

    def hold_reads(self, tokens: list[int], page: int = 0) -> None:
        """Make the read of one page of *tokens* wait, and those behind it with it."""
        wanted = page_hashes(tokens, PAGE_TOKENS)[page]
        (key,) = (info.key for info in self.store.list_keys() if info.key.startswith(wanted))
        self.store.rescript([Fault("read", "delay", key=key, gate=self.gate)])

    def step_until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.controller.step()

    @property
    def fetched(self) -> int:
        return self.engine.counters["pages_prefetched"]

    @property
    def read(self) -> int:
        return self.engine.counters["pages_hit"]


def queued(server: Server) -> None:
    server.hold_probes()
    server.controller.arrive("before", BEFORE)
    server.controller.arrive("r", PROMPT)


def probing(server: Server) -> None:
    server.hold_probes()
    server.controller.arrive("r", PROMPT)
    assert server.gate.entered.wait(60)


def allocated(server: Server) -> None:
    server.hold_reads(BEFORE)
    server.controller.arrive("before", BEFORE)
    server.step_until(server.gate.entered.is_set)
    server.controller.arrive("r", PROMPT)
    server.step_until(lambda: server.engine.host_slots.num_held == BUDGET)


def reading(server: Server) -> None:
    server.hold_reads(PROMPT)
    server.controller.arrive("r", PROMPT)
    server.step_until(server.gate.entered.is_set)


def partly_arrived(server: Server) -> None:
    server.hold_reads(PROMPT, page=2)
    server.controller.arrive("r", PROMPT)
    server.step_until(lambda: server.fetched == 2)


def finished_and_not_consumed(server: Server) -> None:
    server.controller.arrive("r", PROMPT)
    server.step_until(lambda: server.engine.host_slots.num_held == 6)
    while server.read < 6:
        pass


def revoked(server: Server) -> None:
    reading(server)
    assert server.controller.ready("r")


def consumed(server: Server) -> None:
    server.controller.arrive("r", PROMPT)
    server.controller.settle()


def admitted(server: Server) -> None:
    consumed(server)
    assert server.controller.admit("r").cached == CachedTokens(store=6 * PAGE_TOKENS)


def loading(server: Server) -> None:
    consumed(server)
    server.engine.load.at_once = False
    server.controller.admit("r")


def computing(server: Server) -> None:
    admitted(server)
    server.engine.compute("r", PROMPT)


def backing_up(server: Server) -> None:
    computing(server)
    server.engine.backup.at_once = False
    server.engine.compute("r", PROMPT + PROMPT)
    server.controller.commit("r", PROMPT + PROMPT)


STATES = [
    queued,
    probing,
    allocated,
    reading,
    partly_arrived,
    finished_and_not_consumed,
    revoked,
    consumed,
    admitted,
    loading,
    computing,
    backing_up,
]


@pytest.fixture
def server() -> Iterator[Server]:
    opened = Server()
    yield opened
    opened.gate.open()
    opened.engine.close()


@pytest.mark.parametrize("state", STATES)
def test_an_aborted_request_leaves_nothing_behind(state: Callable[[Server], None], server: Server) -> None:
    state(server)
    server.engine.check()

    server.controller.abort("r")

    server.engine.check()
    server.gate.open()
    server.store.rescript([])
    server.controller.abort("before")
    server.controller.settle()
    server.engine.check()
    server.controller.flush()
    assert (server.engine.device_slots.num_held, server.engine.host_slots.num_held) == (0, 0)
    server.controller.arrive("next", PROMPT)
    server.controller.arrive("after", BEFORE)
    assert server.engine.counters["prefetch_declined.budget"] == 0
    for name in ("next", "after"):
        server.controller.abort(name)


@pytest.mark.parametrize("state", STATES)
def test_a_store_can_be_taken_away_in_every_state(state: Callable[[Server], None], server: Server) -> None:
    state(server)
    server.gate.open()

    server.controller.detach()

    server.engine.check()
    assert server.controller.ready("r")
    for name in ("r", "before"):
        server.controller.abort(name)


def test_an_abort_of_what_is_not_there_or_has_ended_does_nothing(server: Server) -> None:
    server.engine.generate(PROMPT)

    server.controller.abort("request 1")
    server.controller.abort("nobody")

    server.engine.check()


def test_a_thousand_prefetches_given_up_at_any_time_cost_the_budget_nothing(server: Server) -> None:
    rng = random.Random(16)

    for number in range(1000):
        server.controller.arrive(f"r{number}", rng.choice((PROMPT, BEFORE)))
        for _ in range(rng.randrange(6)):
            server.controller.step()
        server.controller.abort(f"r{number}")
        if rng.randrange(4) == 0:
            server.controller.settle()
            server.controller.flush()
    server.controller.settle()
    server.controller.flush()
    server.engine.check()

    declined = server.engine.counters["prefetch_declined.budget"]
    for name, tokens in (("a", PROMPT), ("b", BEFORE)):
        server.controller.arrive(name, tokens)
    assert server.engine.counters["prefetch_declined.budget"] == declined
    server.controller.settle()
    for name in ("a", "b"):
        assert server.controller.admit(name).cached == CachedTokens(store=6 * PAGE_TOKENS)
        server.controller.abort(name)


def test_of_six_pages_of_which_four_arrive_just_two_are_freed() -> None:
    server = Server("wait_complete")
    (lost,) = (info.key for info in server.store.list_keys() if info.key[:64] == page_hashes(PROMPT, PAGE_TOKENS)[4])
    server.store.rescript([Fault("read", "miss", key=lost)])
    server.controller.arrive("r", PROMPT)
    server.step_until(lambda: server.controller.ready("r"))

    server.controller.abort("r")

    assert server.engine.host_slots.num_held == 4
    server.engine.check()
    assert server.engine.generate(PROMPT).cached.total == 4 * PAGE_TOKENS
    server.engine.close()
