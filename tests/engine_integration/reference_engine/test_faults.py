"""Loads and stores that fail, or are slow, on single ranks: every request gets its tokens, and no rank is left behind."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from hicache_storage.engine_integration.controller import Controller, StoreConnection
from hicache_storage.engine_integration.reference_engine import rank_tiers
from hicache_storage.engine_integration.reference_engine.engine_config import StoreTarget
from hicache_storage.engine_integration.reference_engine.messages import (
    Abort,
    Answered,
    Attach,
    Command,
    Flush,
    Generate,
    Token,
)
from hicache_storage.engine_integration.transfer import Load
from hicache_storage.engine_integration.transfer.request import LayerTransfer
from hicache_storage.errors import CorruptObject, HiCacheError, RankFailure, StoreUnavailable
from hicache_storage.registry import open_store
from hicache_storage.store import ObjectStore
from hicache_storage.testing.faults import Fault, FaultyStore
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.reference_engine.asking import (
    EAGER,
    Answer,
    answered,
    ask,
    config,
    counters,
    hear,
    prompt,
    turns,
)
from tests.engine_integration.reference_engine.thread_ranks import Steps, ThreadEngine

TIGHT = 24
SERIALS = [1, 2, 3, 4]


def tokens_of(answers: dict[str, Answer]) -> list[list[int]]:
    return [answer.tokens for answer in answers.values()]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    with ThreadEngine(config(cache="off")) as engine:
        return tokens_of(ask(engine, *turns(SERIALS)))


Script: TypeAlias = Callable[[int], Sequence[Fault]]


@pytest.fixture
def shared_stores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Script], list[FaultyStore]]:
    """Let every rank open a faulty view of one file store, with a script by the order of opening."""

    def script_by(script: Script) -> list[FaultyStore]:
        opened, one_at_a_time = list[FaultyStore](), threading.Lock()

        def open_it(_: StoreTarget) -> ObjectStore:
            with one_at_a_time:
                opened.append(FaultyStore(open_store(f"file://{tmp_path}"), script(len(opened))))
                return opened[-1]

        monkeypatch.setattr(rank_tiers, "open_target", open_it)
        return opened

    return script_by


@pytest.mark.parametrize("failures", [1, 2, 1000])
def test_a_load_that_fails_on_one_rank_is_computed_again_on_all(
    monkeypatch: pytest.MonkeyPatch, expected: list[list[int]], failures: int
) -> None:
    victim: list[Load] = []

    def failing(load: Load, transfer: LayerTransfer, pairs: Sequence[tuple[int, int]]) -> object:
        if not victim:
            victim.append(load)
        if load is victim[0] and load.completed + load.failed < failures:
            raise HiCacheError("planted")
        return original(load, transfer, pairs)

    original = Load._start_direct
    monkeypatch.setattr(Load, "_start_direct", failing)
    with ThreadEngine(config(topology="tp2pp2", device_pages=TIGHT)) as engine:
        ask(engine, *turns(SERIALS))
        again = ask(engine, *turns(SERIALS, name="again"))
        counted = counters(engine)

    assert tokens_of(again) == expected
    assert 0 < counted["restores_failed"] <= 2 * len(SERIALS)


FAULTS = [
    Fault("read", "raise", error=StoreUnavailable("planted")),
    Fault("read", "miss"),
    Fault("read", "corrupt"),
    Fault("read", "raise", error=CorruptObject("planted")),
    Fault("stat", "raise", error=StoreUnavailable("planted")),
    Fault("write", "raise", error=StoreUnavailable("planted")),
    Fault("write", "lost_answer"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.op}-{fault.kind}")
def test_a_store_that_fails_for_one_rank_costs_no_token(
    shared_stores: Callable[[Script], list[FaultyStore]],
    expected: list[list[int]],
    fault: Fault,
) -> None:
    stores = shared_stores(lambda serial: [fault] if serial % 4 == 1 else [])
    settings = config(topology="tp2pp2", store=StoreTarget(backend="shared"))

    for _ in range(2):
        with ThreadEngine(settings) as engine:
            answers = ask(engine, *turns(SERIALS))
        assert tokens_of(answers) == expected
        assert [len(store.calls) > 0 for store in stores] == [True] * len(stores)

    assert any(call.op == fault.op for call in stores[1].calls + stores[5].calls)


@pytest.mark.parametrize("seed", range(3))
def test_random_failures_on_single_ranks_cost_no_token(
    shared_stores: Callable[[Script], list[FaultyStore]],
    expected: list[list[int]],
    seed: int,
) -> None:
    rng = random.Random(seed)
    kinds = [("read", "raise"), ("read", "miss"), ("read", "corrupt"), ("stat", "miss"), ("write", "raise")]

    def script(_: int) -> list[Fault]:
        picked = [rng.choice(kinds) for _ in range(12)]
        return [Fault(op, kind, nth=rng.randint(1, 40)) for op, kind in picked]  # type: ignore[arg-type]

    shared_stores(script)
    settings = config(
        topology=rng.choice(["tp2pp2", "tp4pp1", "tp1pp3:1+1+2"]),
        store=StoreTarget(backend="shared"),
        layer_partition=1,
        head_partition=1,
        device_pages=TIGHT,
        tiers=replace(EAGER, host_ratio=1.0),
    )

    for _ in range(2):
        with ThreadEngine(settings) as engine:
            answers = ask(engine, *turns(SERIALS))
        assert tokens_of(answers) == expected


def test_a_store_that_one_rank_cannot_open_is_attached_on_none(
    monkeypatch: pytest.MonkeyPatch, expected: list[list[int]]
) -> None:
    serial, closed = itertools.count(), list[int]()

    class Closing(MemoryStore):
        def close(self) -> None:
            closed.append(1)
            super().close()

    def open_it(_: StoreTarget) -> ObjectStore:
        if next(serial) == 2:
            raise StoreUnavailable("planted")
        return Closing()

    monkeypatch.setattr(rank_tiers, "open_target", open_it)
    with ThreadEngine(config(topology="tp2pp2")) as engine:
        error = answered(engine, Attach(1, "shared")).error
        attached = counters(engine)["now.store_attached"]
        again = answered(engine, Attach(2, "shared")).error
        answers = ask(engine, *turns(SERIALS))

    assert "StoreUnavailable: planted" in str(error)
    assert (attached, again) == (0, None)
    assert len(closed) == 3 + 4
    assert tokens_of(answers) == expected


def test_a_store_that_the_ranks_do_not_use_alike_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, closed, refused = list[int](), list[int](), list[int]()

    class Closing(MemoryStore):
        def close(self) -> None:
            closed.append(1)
            super().close()

    def open_it(_: StoreTarget) -> ObjectStore:
        opened.append(1)
        return Closing()

    def attach(controller: Controller, connection: StoreConnection) -> None:
        if len(refused) < 2:
            refused.append(1)
            raise RankFailure("attach", {0: "says [1]", 1: "says [0]"})
        original(controller, connection)

    original = Controller.attach
    monkeypatch.setattr(rank_tiers, "open_target", open_it)
    monkeypatch.setattr(Controller, "attach", attach)
    with ThreadEngine(config(topology="tp2pp1")) as engine:
        error = answered(engine, Attach(1, "shared")).error
        counters(engine)  # the second rank may have been told of its own error after the first had answered
        closed_by_then = len(closed)
        again = answered(engine, Attach(2, "shared")).error

    assert "says [1]" in str(error)
    assert again is None
    assert (closed_by_then, len(opened), len(closed)) == (2, 4, 4)


def test_what_comes_after_a_flush_waits_for_it_and_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    later = [Generate("after", prompt(1), 2), Generate("gone", prompt(2), 2)]
    commands: list[Command] = [*turns([1], new_tokens=5), Flush(7), *later, Abort("gone")]

    with ThreadEngine(config()) as engine:
        for command in commands:
            engine.send(command)
        steps.go_on()
        events = [engine.receive() for _ in range(5 + 1 + 2 + 1)]

    tokens = [event for event in events if isinstance(event, Token) and event.token >= 0]
    assert [token.request_id for token in tokens] == ["1"] * 5 + ["after"] * 2
    assert events.index(Answered(7)) == events.index(tokens[4]) + 1
    assert tokens[5].cached_device == 0
    assert Token("gone", -1, "abort") in events


@pytest.mark.parametrize("after", [0, 1, 4, 9])
def test_a_request_may_be_aborted_at_any_moment(
    monkeypatch: pytest.MonkeyPatch, expected: list[list[int]], after: int
) -> None:
    steps = Steps(monkeypatch)
    with ThreadEngine(config(topology="tp2pp1", device_pages=TIGHT)) as engine:
        for serial, request in zip(SERIALS, turns(SERIALS, new_tokens=20), strict=True):
            engine.send(request)
            steps.take(after)
            if serial % 2:
                engine.send(Abort(request.request_id))
        steps.go_on()
        answers = hear(engine, [str(serial) for serial in SERIALS])
        again = ask(engine, *turns(SERIALS, name="again"))

    assert [answer.reason for answer in answers.values()] == ["abort", "length", "abort", "length"]
    assert tokens_of(again) == expected
