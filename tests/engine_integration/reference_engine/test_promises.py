"""What a request is told to be cached is what it did not compute: nothing is promised before it is there (F22)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.reference_engine import rank_tiers
from hicache_storage.engine_integration.reference_engine.engine_config import StoreTarget
from hicache_storage.engine_integration.reference_engine.messages import Generate
from hicache_storage.layout import page_hashes
from hicache_storage.registry import open_store
from hicache_storage.store import ObjectStore
from hicache_storage.telemetry import PREFETCH_DECLINED_ROOM, Counters
from hicache_storage.testing.faults import Fault, FaultyStore, Gate
from tests.engine_integration.reference_engine.asking import EAGER, PAGE_TOKENS, ask, config, counters, prompt
from tests.engine_integration.reference_engine.thread_ranks import ThreadEngine

REQUEST = Generate("a", prompt(1, 40), 4)
"""Nine of its ten pages may come from a cache."""

DECLINES = {
    "short": (replace(EAGER, prefetch_threshold_tokens=37), "prefetch_declined.short"),
    "budget": (replace(EAGER, prefetch_host_fraction=0.001), "prefetch_declined.budget"),
    "slow": (
        replace(EAGER, fetch_or_recompute=True, prefill_tokens_per_s=1e9),
        "prefetch_declined.slower_than_prefill",
    ),
}


@pytest.fixture
def said(tmp_path: Path) -> list[int]:
    """Fill a store with the request's pages; return what was said to it."""
    with ThreadEngine(config(folder=tmp_path, topology="tp2pp1")) as engine:
        return ask(engine, REQUEST)["a"].tokens


@pytest.mark.parametrize("reason", DECLINES)
def test_a_declined_prefetch_promises_nothing(tmp_path: Path, said: list[int], reason: str) -> None:
    tiers, counter = DECLINES[reason]
    with ThreadEngine(config(folder=tmp_path, topology="tp2pp1", tiers=tiers)) as engine:
        ask(engine, Generate("warm up", prompt(2), 1))
        if reason == "slow":
            # The store's speed is known once something was read from it.
            ask(engine, Generate("measured", REQUEST.tokens[:17], 1))
        answer = ask(engine, REQUEST)["a"]
        counted = counters(engine)

    assert answer.cached[2] == 0
    assert answer.tokens == said
    assert counted[counter] > 0
    assert counted["tokens_computed"] >= 40 + 3 - answer.cached[0]


def test_a_prefetch_without_room_on_the_host_promises_nothing(
    tmp_path: Path, said: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages whose write hangs fill the host; the store answers again once the prefetch was declined."""
    gate = Gate()

    def open_it(_: StoreTarget) -> ObjectStore:
        return FaultyStore(open_store(f"file://{tmp_path}"), [Fault("write", "delay", gate=gate)])

    def add(self: Counters, name: str, amount: int = 1) -> None:
        original(self, name, amount)
        if name == PREFETCH_DECLINED_ROOM:
            gate.open()

    original = Counters.add
    monkeypatch.setattr(Counters, "add", add)
    monkeypatch.setattr(rank_tiers, "open_target", open_it)
    tiers = replace(EAGER, prefetch_threshold_tokens=8, prefetch_host_fraction=1.0, host_ratio=12 / 64)
    settings = config(topology="tp2pp1", tiers=tiers, store=StoreTarget(backend="held"))
    with ThreadEngine(settings) as engine:
        ask(engine, Generate("fills the host", prompt(2, 44), 1))
        while counters(engine).get("pages_backed_up", 0) < 2 * 11:
            pass
        answer = ask(engine, REQUEST)["a"]

    assert answer.cached == (0, 0, 0)
    assert answer.tokens == said


@pytest.mark.parametrize("lost", [0, 1, 5, 8])
def test_a_short_restore_promises_what_has_arrived(tmp_path: Path, said: list[int], lost: int) -> None:
    page_hash = page_hashes(REQUEST.tokens, PAGE_TOKENS)[lost]
    store = open_store(f"file://{tmp_path}")
    for key in [info.key for info in store.list_keys(page_hash)][:1]:
        store.delete(key)
    store.close()

    with ThreadEngine(config(folder=tmp_path, topology="tp2pp1")) as engine:
        answer = ask(engine, REQUEST)["a"]
        counted = counters(engine)

    assert answer.cached == (0, 0, lost * PAGE_TOKENS)
    assert answer.tokens == said
    assert counted["tokens_computed"] == 40 + 3 - lost * PAGE_TOKENS


def test_a_request_that_does_not_wait_is_told_what_it_did_not_wait_for(tmp_path: Path, said: list[int]) -> None:
    tiers: TierOptions = replace(EAGER, prefetch_policy="best_effort")
    with ThreadEngine(config(folder=tmp_path, topology="tp2pp1", tiers=tiers)) as engine:
        answer = ask(engine, REQUEST)["a"]
        counted = counters(engine)

    assert answer.tokens == said
    assert counted["tokens_computed"] == 40 + 3 - sum(answer.cached)
