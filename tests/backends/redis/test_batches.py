"""What a batch asks the server, in which order, and how often."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait

import pytest

from hicache_storage.backends.redis import RedisStore
from hicache_storage.backends.redis.wire import PIECE_NBYTES
from hicache_storage.config import Secret
from hicache_storage.errors import AccessDenied
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.testing.services.redis_server import RedisServer
from hicache_storage.types import ObjectWrite, RangeRead, Status
from tests.backends.redis.back_door import PATIENT_S, RedisService, redis_key, redis_options
from tests.backends.redis.stub import StubRedis

pytest_plugins = ["tests.backends.redis.services"]

_LOOKED_AT_NBYTES = 64 << 10


class NotedTail:
    """A digest of the payload that notes how far it was told to be."""

    nbytes = 32

    def __init__(self, payload: bytes) -> None:
        self.told: list[int] = []
        self._payload = payload

    def advance(self, nbytes: int) -> None:
        self.told.append(nbytes)

    def finish(self) -> bytes:
        return hashlib.sha256(self._payload).digest()


class Replies:
    """Answers of a server that holds *there*, objects of `_LOOKED_AT_NBYTES`; what is written is not noted."""

    def __init__(self, there: Sequence[bytes]) -> None:
        self._there = there

    def __call__(self, connection: socket.socket, words: list[bytes]) -> None:
        found = sum(word in self._there for word in words[1:])
        match words[0]:
            case b"EXISTS":
                connection.sendall(b":%d\r\n" % found)
            case b"STRLEN":
                connection.sendall(b":%d\r\n" % (found * _LOOKED_AT_NBYTES))
            case _:
                connection.sendall(b"+OK\r\n")


@pytest.mark.parametrize("there", [[], [b"hicache:b"], [b"hicache:a", b"hicache:b", b"hicache:c"]], ids=len)
def test_only_what_is_not_there_is_sent_and_one_question_is_enough_where_nothing_is(there: list[bytes]) -> None:
    with StubRedis(Replies(there)) as server:
        options = redis_options(url=Secret(server.url), io_threads=1, deadline_s=PATIENT_S)
        with RedisStore(options) as store:
            outcomes = store.write_many([ObjectWrite(key, [bytes(_LOOKED_AT_NBYTES)]) for key in "abc"])

        asked = [words[0] for words in server.commands]
        sent = [words[1] for words in server.commands if words[0] == b"SET"]

    keys = [b"hicache:a", b"hicache:b", b"hicache:c"]
    assert [outcome.status is Status.ALREADY_THERE for outcome in outcomes] == [key in there for key in keys]
    assert sent == [key for key in keys if key not in there]
    assert asked.count(b"EXISTS") == 1
    assert asked.count(b"STRLEN") == (3 if there else 0)


def test_a_payload_is_hashed_piece_by_piece_while_it_is_sent(service: RedisService) -> None:
    bodies = [body_of(f"piece {i}", nbytes) for i, nbytes in enumerate((2 * PIECE_NBYTES + 1000, 100, 0))]
    cuts = [[body[:70_000], body[70_000:]] for body in bodies]
    tails = [NotedTail(body) for body in bodies]
    options = service.options(io_threads=1)
    with RedisStore(options) as store:
        outcomes = store.write_many([ObjectWrite(f"k{i}", cuts[i], tails[i]) for i in range(3)])

    assert [outcome.status for outcome in outcomes] == [Status.STORED] * 3
    assert [tail.told for tail in tails] == [[PIECE_NBYTES, 2 * PIECE_NBYTES, 2 * PIECE_NBYTES + 1000], [100], []]
    for i, body in enumerate(bodies):
        assert service.observe(options, f"k{i}") == body + hashlib.sha256(body).digest()


def test_a_reader_is_told_of_every_piece_that_is_in_place(service: RedisService) -> None:
    body = body_of("told", 2 * PIECE_NBYTES + 1000)
    options = service.options()
    service.plant(options, "a", body)
    target = poisoned(len(body))
    told: list[tuple[int, bool]] = []

    def note(nbytes: int) -> None:
        told.append((nbytes, target[:nbytes] == body[:nbytes]))

    with RedisStore(options) as store:
        [outcome] = store.read_many([RangeRead("a", 0, [target], len(body), note)])

    assert outcome.status is Status.HIT
    assert told == [(PIECE_NBYTES, True), (2 * PIECE_NBYTES, True), (len(body), True)]


def test_what_ends_a_batch_on_one_thread_ends_it_on_all(service: RedisService, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(BaseException):
        pass

    caller, other_reads, is_over = threading.current_thread(), threading.Event(), threading.Event()
    read_by_other: list[int] = []

    def on_filled(_: int) -> None:
        if threading.current_thread() is caller:
            assert other_reads.wait(PATIENT_S)
            raise Interrupted
        read_by_other.append(1)
        other_reads.set()
        assert is_over.wait(PATIENT_S)

    def wait_for_the_others(threads: Sequence[Future[None]]) -> None:
        is_over.set()
        wait(threads)

    monkeypatch.setattr("hicache_storage.backends.io_threads.wait", wait_for_the_others)
    options = service.options(io_threads=2, pipeline_nbytes=1)
    for i in range(16):
        service.plant(options, f"k{i}", b"0123")
    with RedisStore(options) as store, pytest.raises(Interrupted):
        store.read_many([RangeRead(f"k{i}", 0, [bytearray(4)], 4, on_filled) for i in range(16)])

    assert len(read_by_other) == 1


def test_a_touch_is_a_use_and_a_look_is_none(own_server: RedisServer) -> None:
    # Every single use counts, and nothing of it is forgotten as time passes.
    for name, value in (("maxmemory-policy", "allkeys-lfu"), ("lfu-log-factor", 0), ("lfu-decay-time", 0)):
        assert own_server.ask("CONFIG", "SET", name, value) == b"+OK\r\n"
    options = redis_options(url=Secret(own_server.url), deadline_s=PATIENT_S)
    uses = ("OBJECT", "FREQ", redis_key(options, "a").decode())
    with RedisStore(options) as store:
        assert own_server.ask("SET", redis_key(options, "a").decode(), "x") == b"+OK\r\n"
        before = int(own_server.ask(*uses)[1:])

        assert [outcome.status for outcome in store.exists_many(["a"])] == [Status.HIT]
        assert int(own_server.ask(*uses)[1:]) == before
        assert [outcome.status for outcome in store.touch_many(["a"])] == [Status.HIT]
        assert int(own_server.ask(*uses)[1:]) == before + 1


@pytest.mark.parametrize("ttl_s", [None, 1000.0])
def test_touching_tells_what_is_there_whatever_it_is(service: RedisService, ttl_s: float | None) -> None:
    options = service.options(chunk_nbytes=1024, ttl_s=ttl_s)
    service.plant(options, "empty", b"")
    service.plant(options, "small", b"x")
    with RedisStore(options) as store:
        store.write("chunked", [bytes(3000)])

        outcomes = store.touch_many(["empty", "nothing", "small", "chunked"])

    assert [outcome.status for outcome in outcomes] == [Status.HIT, Status.MISS, Status.HIT, Status.HIT]


def test_an_error_in_the_first_of_two_answers_leaves_none_behind() -> None:
    def answer(connection: socket.socket, words: list[bytes]) -> None:
        if words[0] == b"STRLEN":
            connection.sendall(b"-NOPERM this user has no permissions\r\n" if words[1].endswith(b"mine") else b":5\r\n")
        else:
            connection.sendall(b":1\r\n")

    with StubRedis(answer) as server:
        options = redis_options(url=Secret(server.url), ttl_s=1000.0, deadline_s=PATIENT_S)
        with RedisStore(options) as store:
            first, second = store.touch_many(["mine", "other"])
            [third] = store.touch_many(["other"])

        assert isinstance(first.error, AccessDenied)
        assert [second.status, third.status] == [Status.HIT, Status.HIT]
        assert server.connections == 1
