from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

import pytest

from hicache_storage.backends.redis import RedisStore
from hicache_storage.config import Secret
from hicache_storage.deadline import within
from hicache_storage.errors import StoreError, StoreFull, StoreUnavailable
from hicache_storage.store import ObjectStore
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.testing.hooks import at_once, fetched
from hicache_storage.testing.services.process import ReservedPort
from hicache_storage.testing.services.redis_server import RedisServer
from hicache_storage.types import ObjectWrite, Outcome, RangeRead, Status, WriteResult
from tests.backends.redis.back_door import PATIENT_S, RedisService, redis_options
from tests.backends.redis.stub import Answer, StubRedis

pytest_plugins = ["tests.backends.redis.services"]

_DEADLINE_S = 0.2
_AT_MOST_S = 100 * _DEADLINE_S
"""What a silent server may cost on however busy a machine."""

_IO_THREADS = 4

_CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "write": lambda store: store.write("a", [b"x"]),
    "read": lambda store: store.read_into("a", 0, [bytearray(1)]),
    "stat": lambda store: store.stat("a"),
    "delete": lambda store: store.delete("a"),
    "list": lambda store: list(store.list_keys()),
}
_BATCHES: dict[str, Callable[[ObjectStore], list[Outcome]]] = {
    "read_many": lambda store: store.read_many([RangeRead(f"a{i}", 0, [bytearray(1)]) for i in range(64)]),
    "write_many": lambda store: store.write_many([ObjectWrite(f"a{i}", [bytes(100_000)]) for i in range(64)]),
    "exists_many": lambda store: store.exists_many([f"a{i}" for i in range(64)]),
    "delete_many": lambda store: store.delete_many([f"a{i}" for i in range(64)]),
    "touch_many": lambda store: store.touch_many([f"a{i}" for i in range(64)]),
}


@contextmanager
def store_at(url: str, **values: object) -> Iterator[RedisStore]:
    given: dict[str, object] = {"deadline_s": PATIENT_S, "io_threads": _IO_THREADS}
    with RedisStore(redis_options(url=Secret(url), **(given | values))) as store:
        yield store


@contextmanager
def stub(answer: Answer, **values: object) -> Iterator[tuple[StubRedis, RedisStore]]:
    with StubRedis(answer) as server, store_at(server.url, **values) as store:
        yield server, store


@contextmanager
def silent(**values: object) -> Iterator[tuple[StubRedis, RedisStore]]:
    """A server that takes commands and says nothing, and a store on it that does not wait for long."""
    with stub(lambda *_: server.wait_for_end(), **({"deadline_s": _DEADLINE_S} | values)) as (server, store):
        yield server, store


@contextmanager
def costs_a_deadline() -> Iterator[None]:
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < _AT_MOST_S


def says(*answers: bytes) -> Answer:
    """Return what answers each command with the next of *answers*, and the last one for ever."""
    left = list(answers)

    def answer(connection: socket.socket, words: list[bytes]) -> None:
        connection.sendall(left.pop(0) if len(left) > 1 else left[0])

    return answer


# -- a server that says nothing --------------------------------------------------------------------


@pytest.mark.parametrize("call", _CALLS)
def test_a_silent_server_costs_the_deadline_in_all(call: str) -> None:
    with silent() as (_, store), costs_a_deadline(), pytest.raises(StoreUnavailable):
        _CALLS[call](store)


@pytest.mark.parametrize("call", _BATCHES)
def test_a_silent_server_costs_a_batch_the_deadline_once(call: str) -> None:
    with silent() as (server, store):
        outcomes = _BATCHES[call](store)

        assert {type(outcome.error) for outcome in outcomes} == {StoreUnavailable}
        assert len(outcomes) == 64
        # Who waits again has to connect again: a connection that is owed an answer is of no use.
        assert server.connections <= _IO_THREADS


@pytest.mark.parametrize("call", _BATCHES)
def test_every_thread_of_a_batch_keeps_the_callers_deadline(call: str) -> None:
    with silent(deadline_s=PATIENT_S) as (_, store):
        began_s = time.monotonic()

        with within(_DEADLINE_S):
            outcomes = _BATCHES[call](store)

        assert time.monotonic() - began_s < PATIENT_S / 2
        assert {type(outcome.error) for outcome in outcomes} == {StoreUnavailable}


def test_a_server_that_accepts_no_login_in_time_costs_the_deadline() -> None:
    with silent(password=Secret("x")) as (_, store), costs_a_deadline(), pytest.raises(StoreUnavailable):
        store.stat("a")


def test_all_addresses_of_a_silent_host_together_cost_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as waiting:
        address = full.getsockname()
        for _ in range(8):  # What is not accepted fills its queue: whoever comes next gets no answer.
            caller = waiting.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(address)
        # As many as would take far longer than that, if each had a deadline of its own.
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address)] * 300
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

        with (
            store_at("redis://many.example:6379", deadline_s=_DEADLINE_S) as store,
            costs_a_deadline(),
            pytest.raises(StoreUnavailable),
        ):
            store.stat("a")


def test_a_server_that_stops_within_an_answer_costs_the_deadline() -> None:
    with (
        stub(says(b"$1000000\r\n0123"), deadline_s=_DEADLINE_S) as (_, store),
        costs_a_deadline(),
        pytest.raises(StoreUnavailable),
    ):
        store.read_into("a", 0, [bytearray(1_000_000)], object_nbytes=1_000_000)


def test_a_paused_server_fails_what_meets_it_and_serves_again(own_server: RedisServer) -> None:
    with store_at(own_server.url) as store:
        store.write("a", [b"0123"])
        own_server.pause()

        with costs_a_deadline(), within(_DEADLINE_S):
            outcomes = _BATCHES["read_many"](store)

        own_server.resume()
        assert {type(outcome.error) for outcome in outcomes} == {StoreUnavailable}
        assert fetched(store, "a", 0, 4) == b"0123"


# -- answers to somebody else ------------------------------------------------------------------------


def test_a_late_answer_is_never_taken_for_another_ones() -> None:
    """The first read times out; its answer comes afterwards, when its connection is of no use to anybody."""

    def answer(connection: socket.socket, words: list[bytes]) -> None:
        if any(word.endswith(b"other") for word in words):
            late.append(connection)
        else:
            served.append(connection)
            connection.sendall(b"$4\r\nmine\r\n")

    late: list[socket.socket] = []
    served: list[socket.socket] = []
    with stub(answer) as (_, store):
        while not late:  # On a busy machine the deadline may be over before the server has been asked.
            with within(_DEADLINE_S), pytest.raises(StoreUnavailable):
                store.read_into("other", 0, [bytearray(4)], object_nbytes=4)
        with contextlib.suppress(OSError):  # It may be closed by now, at both ends.
            late[0].sendall(b"$4\r\nlate\r\n")
        target = poisoned(4)

        assert store.read_into("mine", 0, [target], object_nbytes=4)

        assert target == b"mine"
        assert served[0] not in late


def test_an_answer_that_nobody_asked_for_is_never_read() -> None:
    numbers = count()

    def answer(connection: socket.socket, words: list[bytes]) -> None:
        connection.sendall(b"$4\r\nmine\r\n" + b"$4\r\nevil\r\n" * (next(numbers) == 0))

    with stub(answer) as (server, store):
        for _ in range(3):
            assert fetched_whole(store, "a", 4) == b"mine"

        assert server.connections == 2


def test_an_interrupted_read_leaves_its_connection_to_nobody(service: RedisService) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(_: int) -> None:
        raise Interrupted

    options = service.options()
    for key in ("a", "b"):
        service.plant(options, key, body_of(key, 1 << 20))
    with RedisStore(options) as store:
        with pytest.raises(Interrupted):
            store.read_many([RangeRead("a", 0, [bytearray(1 << 20)], 1 << 20, interrupt)])

        assert fetched_whole(store, "b", 1 << 20) == body_of("b", 1 << 20)


@pytest.mark.parametrize(
    "odd",
    [
        b"?what\r\n",
        b"\r\n",
        b":x\r\n",
        b"$-7\r\n",
        b"*1\r\n$1\r\nx\r\n",
        b"$4\r\n0123xx",
        b"x" * 20_000,
        b"+" + b"x" * 20_000,
    ],
    ids=lambda odd: ascii(odd[:10]),
)
def test_an_answer_that_makes_no_sense_ends_its_connection(odd: bytes) -> None:
    with stub(says(odd, b"$4\r\nmine\r\n")) as (server, store):
        with pytest.raises(StoreUnavailable):
            store.read_into("a", 0, [bytearray(4)], object_nbytes=4)

        assert fetched_whole(store, "a", 4) == b"mine"
        assert server.connections == 2


# -- connections that end ----------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"$", b"$4\r\n", b"$4\r\n01", b"$4\r\n0123", b"$4\r\n0123\r"], ids=ascii)
def test_a_connection_that_ends_within_an_answer_is_a_failure(sent: bytes) -> None:
    numbers = count()

    def answer(connection: socket.socket, words: list[bytes]) -> None:
        if next(numbers) == 0:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_RDWR)
        else:
            connection.sendall(b"$4\r\nmine\r\n")

    with stub(answer) as (_, store):
        with pytest.raises(StoreUnavailable):
            store.read_into("a", 0, [bytearray(4)], object_nbytes=4)

        assert fetched_whole(store, "a", 4) == b"mine"


def test_answers_before_a_lost_connection_count() -> None:
    numbers = count()

    def answer(connection: socket.socket, words: list[bytes]) -> None:
        if next(numbers) == 2:
            raise OSError
        connection.sendall(b"$4\r\nmine\r\n")

    with StubRedis(answer) as server, store_at(server.url, io_threads=1) as store:
        targets = [poisoned(4) for _ in range(8)]

        outcomes = store.read_many([RangeRead(f"k{i}", 0, [target], 4) for i, target in enumerate(targets)])

        assert [outcome.status for outcome in outcomes[:4]] == [Status.HIT, Status.HIT, Status.FAILED, Status.FAILED]
        assert targets[:2] == [b"mine"] * 2


def test_nobody_listening_is_a_failure_at_once() -> None:
    port = ReservedPort()
    with store_at(f"redis://127.0.0.1:{port.number}") as store:
        with pytest.raises(StoreUnavailable) as caught:
            store.stat("a")

        assert caught.value.retryable
        assert caught.value.key == "a"


def test_a_killed_server_is_unavailable_and_serves_again_once_it_is_back(own_server: RedisServer) -> None:
    body = body_of("killed", 100_000)
    writes = [ObjectWrite(f"k{i}", [body]) for i in range(32)]
    with store_at(own_server.url) as store:
        assert all(store.write_many(writes))
        own_server.kill()

        during = store.write_many(writes) + store.exists_many([write.key for write in writes])
        own_server.start()
        after = store.write_many(writes)

        assert {type(outcome.error) for outcome in during} == {StoreUnavailable}
        assert {outcome.status for outcome in after} == {Status.STORED}
        assert fetched_whole(store, "k7", len(body)) == body


# -- errors that the server states ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", StoreFull),
        (b"-READONLY You can't write against a read only replica.\r\n", StoreUnavailable),
        (b"-LOADING Redis is loading the dataset in memory\r\n", StoreUnavailable),
        (b"-BUSY Redis is busy running a script.\r\n", StoreUnavailable),
        (b"-MISCONF Errors writing to the AOF file\r\n", StoreUnavailable),
    ],
    ids=lambda value: ascii(value[1:8]) if isinstance(value, bytes) else None,
)
def test_an_error_of_the_server_fails_its_request_and_keeps_the_connection(
    said: bytes, meaning: type[StoreError]
) -> None:
    with stub(says(said, b"+OK\r\n")) as (server, store):
        with pytest.raises(meaning) as caught:
            store.write("a", [b"x"])

        assert store.write("b", [b"x"]) is WriteResult.STORED
        assert type(caught.value) is meaning
        assert caught.value.retryable is meaning.retryable
        assert server.connections == 1


def test_a_full_server_refuses_and_takes_objects_again_once_there_is_room(own_server: RedisServer) -> None:
    with store_at(own_server.url) as store:
        used = int(own_server.ask("INFO", "memory").split(b"used_memory:")[1].split()[0])
        own_server.ask("CONFIG", "SET", "maxmemory", used + (4 << 20))

        outcomes = store.write_many([ObjectWrite(f"k{i}", [bytes(500_000)]) for i in range(32)])

        assert {type(outcome.error) for outcome in outcomes} == {StoreFull, type(None)}
        stored = [f"k{i}" for i, outcome in enumerate(outcomes) if outcome]
        assert {info.key for info in store.list_keys()} == set(stored)
        assert fetched(store, stored[0], 5, 100) == bytes(100)
        assert all(store.delete_many(stored))
        assert store.write("small", [b"x"]) is WriteResult.STORED


# -- many threads, many processes ------------------------------------------------------------------------


@pytest.mark.parametrize("round_", range(20))
def test_first_use_by_32_threads_at_once(service: RedisService, round_: int) -> None:
    options = service.options()

    def use(store: ObjectStore, i: int) -> bytes | None:
        store.write(f"k{i}", [body_of(f"k{i}", 999)])
        return fetched(store, f"k{i}", 0, 999)

    with RedisStore(options) as store:
        seen = at_once(*[partial(use, store, i) for i in range(32)])

    assert seen == [body_of(f"k{i}", 999) for i in range(32)]


def fetched_whole(store: ObjectStore, key: str, nbytes: int) -> bytes | None:
    """Return the object, read as one whose size is known."""
    target = poisoned(nbytes)
    return bytes(target) if store.read_into(key, 0, [target], object_nbytes=nbytes) else None
