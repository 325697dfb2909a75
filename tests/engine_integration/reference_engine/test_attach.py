"""A store that has to answer every rank before any uses it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from hicache_storage.engine_integration.page_store import descriptor_key
from hicache_storage.engine_integration.reference_engine import rank_tiers, store_parts
from hicache_storage.engine_integration.reference_engine.messages import Attach, Detach
from hicache_storage.engine_integration.reference_engine.rank_names import reasons_by_name
from hicache_storage.engine_integration.reference_engine.sizes import kv_shape
from hicache_storage.errors import AccessDenied, RankFailure, StoreUnavailable
from hicache_storage.layout import Topology
from hicache_storage.middleware import FaultLayer, FaultOptions
from hicache_storage.store import ObjectStore
from hicache_storage.testing.faults import Fault, FaultyStore
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import WritableBuffer
from tests.engine_integration.reference_engine.asking import answered, ask, config, counters, turns
from tests.engine_integration.reference_engine.places import Place
from tests.engine_integration.reference_engine.thread_ranks import ThreadEngine
from tests.engine_integration.reference_engine.weak_link import deaf_socket

OpenIt = Callable[[Callable[[], ObjectStore]], None]


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> OpenIt:
    """Have ranks open what a function returns, whatever store they are told to."""

    def open_with(make: Callable[[], ObjectStore]) -> None:
        monkeypatch.setattr(rank_tiers, "open_target", lambda _: make())

    return open_with


def test_a_store_that_is_down_is_attached_on_no_rank_and_the_ranks_say_why() -> None:
    with deaf_socket() as deaf, ThreadEngine(config(topology="tp2pp1")) as engine:
        nobody = Place("redis", {"url": f"redis://user:hunter2@127.0.0.1:{deaf.getsockname()[1]}"}).target
        answer = answered(engine, Attach(1, nobody.backend, nobody.extra_config, must_answer=True))
        attached = counters(engine)["now.store_attached"]
        answers = ask(engine, *turns([1]))

    assert all(words in str(answer.error) for words in ("tp0pp0", "tp1pp0", "StoreUnavailable: "))
    assert (answer.is_wrong_config, attached, answers["1"].reason) == (False, 0, "length")
    assert "hunter2" not in str(answer.error)


def test_a_store_that_does_not_answer_one_rank_is_attached_on_none(opens: OpenIt) -> None:
    serial, closed = itertools.count(), list[int]()

    class Closing(FaultyStore):
        def close(self) -> None:
            closed.append(1)
            super().close()

    def make() -> ObjectStore:
        return Closing(MemoryStore(), [Fault("read", "raise")] if next(serial) == 2 else [])

    opens(make)
    with ThreadEngine(config(topology="tp2pp2")) as engine:
        refused = answered(engine, Attach(1, "shared", must_answer=True)).error
        # The other ranks may close theirs after the first has answered; they have once all of them report.
        attached = counters(engine)["now.store_attached"]
        closed_by_then = len(closed)
        again = answered(engine, Attach(2, "shared", must_answer=True)).error

    names = {f"tp{tp}pp{pp}" for tp in range(2) for pp in range(2)}
    assert str(refused).partition(": StoreUnavailable: ")[0] in names
    assert (closed_by_then, attached, again) == (4, 0, None)


def test_ranks_that_say_the_same_are_named_together() -> None:
    failure = RankFailure("attach", {3: "it is full", 0: "it is gone", 1: "it is gone"})

    assert reasons_by_name(failure, Topology.parse("tp2pp2")) == "tp0pp0, tp1pp0: it is gone; tp1pp1: it is full"


def test_who_is_not_let_in_is_told_that_the_request_is_wrong(opens: OpenIt) -> None:
    opens(lambda: FaultyStore(MemoryStore(), [Fault("read", "raise", error=AccessDenied("wrong password"))]))

    with ThreadEngine(config()) as engine:
        answer = answered(engine, Attach(1, "shared", must_answer=True))

    assert answer.is_wrong_config
    assert "tp0pp0: AccessDenied: wrong password" in str(answer.error)


def test_a_store_that_is_silent_and_keeps_no_deadline_is_not_waited_for(
    opens: OpenIt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_parts, "_ANSWER_S", 0.05)
    opens(lambda: FaultLayer(MemoryStore(), FaultOptions(hang_rate=1.0), ""))

    with ThreadEngine(config()) as engine:
        error = answered(engine, Attach(1, "shared", must_answer=True)).error

    assert "tp0pp0: StoreUnavailable: " in str(error)


def test_a_damaged_description_is_an_answer_too(opens: OpenIt) -> None:
    store = MemoryStore()
    opens(lambda: store)

    with ThreadEngine(config()) as engine:
        role = store_parts.store_role(engine.config, kv_shape(engine.config), tp_rank=0, pp_rank=0)
        store.write(descriptor_key(role.namespace.digest), [b""])
        assert answered(engine, Attach(1, "shared", must_answer=True)).error is None


def test_a_store_that_does_not_have_to_answer_is_used_once_it_does(opens: OpenIt) -> None:
    opens(lambda: FaultyStore(MemoryStore(), [Fault("read", "raise")]))

    with ThreadEngine(config()) as engine:
        assert answered(engine, Attach(1, "shared")).error is None
        assert counters(engine)["now.store_attached"] == 1


def test_a_store_whose_end_fails_on_one_rank_is_detached_on_all_and_the_engine_goes_on(
    opens: OpenIt, caplog: pytest.LogCaptureFixture
) -> None:
    serial = itertools.count()

    class Stuck(MemoryStore):
        def close(self) -> None:
            super().close()
            raise StoreUnavailable("no answer to the goodbye")

    opens(lambda: Stuck() if next(serial) == 1 else MemoryStore())
    with ThreadEngine(config(topology="tp2pp1")) as engine:
        attached = answered(engine, Attach(1, "shared")).error
        detached = answered(engine, Detach(2)).error
        answers = ask(engine, *turns([1]))
        now = counters(engine)["now.store_attached"]

    assert (attached, detached, answers["1"].reason, now) == (None, None, "length", 0)
    assert "no answer to the goodbye" in caplog.text


def test_a_store_that_keeps_memory_it_was_lent_is_closed_all_the_same(
    opens: OpenIt, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[int] = []

    class Clinging(MemoryStore):
        capabilities = replace(MemoryStore.capabilities, memory_registration=True)

        def register_memory(self, buffer: WritableBuffer) -> None:
            pass

        def unregister_memory(self, buffer: WritableBuffer) -> None:
            raise StoreUnavailable("it is in use")

        def close(self) -> None:
            closed.append(1)
            super().close()

    opens(Clinging)
    with ThreadEngine(config()) as engine:
        errors = [answered(engine, command).error for command in (Attach(1, "shared"), Detach(2))]

    assert (errors, closed) == ([None, None], [1])
    assert "it is in use" in caplog.text
