"""Reads of a part of an object, which ask for the size before and behind the bytes, while a cluster moves its slot."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from redis.crc import key_slot

from hicache_storage.backends.redis import RedisStore
from hicache_storage.backends.redis.wire import Wire
from hicache_storage.errors import StoreUnavailable
from hicache_storage.layout.trailer import BlockHasher
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.testing.hooks import fetched
from hicache_storage.testing.services.redis_server import RedisCluster, RedisServer
from hicache_storage.types import ObjectInfo, Outcome, RangeRead, ReadableBuffer, Status, WriteResult
from tests.backends.redis.back_door import RedisService, redis_key
from tests.backends.redis.stub import StubRedis
from tests.backends.redis.test_cluster import keys_of, node_id, settle, tell
from tests.backends.redis.test_faults import store_at

pytest_plugins = ["tests.backends.redis.services"]

_NBYTES = 2000
_ONE, _OTHER = "1" * _NBYTES, "2" * _NBYTES
_OFFSET, _LENGTH, _BLOCK = 8, 1024, 256

_SECOND_COMMAND, _THIRD_COMMAND = b"*4\r\n", b"*2\r\n"
_ANSWERS_BEFORE = {_SECOND_COMMAND: 1, _THIRD_COMMAND: len(":2000\r\n$1024\r\n") + _LENGTH + len("\r\n")}
"""Which bytes of the answers are there once the server has worked off what comes before a command."""


class Part:
    """Memory for a part of an object, which is hashed as it comes."""

    def __init__(self) -> None:
        self._target = poisoned(_LENGTH)
        self._hasher = BlockHasher(memoryview(self._target), _BLOCK, seed=0)

    def read_from(self, store: RedisStore, key: str, object_nbytes: int | None = None) -> Outcome:
        [outcome] = store.read_many([RangeRead(key, _OFFSET, [self._target], object_nbytes, self._hasher.advance)])
        return outcome

    def is_of(self, body: str) -> bool:
        """Return whether the bytes, and those that were hashed, are of *body*."""
        wanted = body.encode()[_OFFSET : _OFFSET + _LENGTH]
        hashed = BlockHasher(memoryview(wanted), _BLOCK, seed=0).packed()
        return self._target == wanted and self._hasher.packed() == hashed


@contextmanager
def meanwhile(command: bytes, *acts: Callable[[], None]) -> Iterator[None]:
    """The first *act* happens when the server has answered what comes before *command* of a part read, and knows no more.

    The others happen before the reads that follow, one each.
    """
    send, left = Wire.send, list(acts)

    def send_with_a_break(wire: Wire, buffers: Sequence[ReadableBuffer]) -> None:
        whole = b"".join(buffers)
        if b"GETRANGE" not in whole or not left:
            send(wire, buffers)
            return
        act = left.pop(0)
        cut = whole.rindex(command) if len(left) == len(acts) - 1 else 0
        if cut:
            send(wire, [whole[:cut]])
            wait_for_answers(wire, _ANSWERS_BEFORE[command])
        act()
        send(wire, [whole[cut:]])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wire, "send", send_with_a_break)
        yield
    assert not left


def wait_for_answers(wire: Wire, nbytes: int) -> None:
    assert len(wire._sock.recv(nbytes, socket.MSG_PEEK | socket.MSG_WAITALL)) == nbytes


def begin_to_move(slot: int, names: Sequence[bytes], source: RedisServer, target: RedisServer) -> None:
    """The slot is on its way to *target*, where these of its keys are already."""
    tell(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
    tell(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))
    for name in names:
        tell(source, "MIGRATE", "127.0.0.1", target.port, name, 0, 60_000)


def test_a_part_that_is_read_again_because_its_slot_came_back_is_hashed_again(
    cluster: RedisCluster, cluster_service: RedisService
) -> None:
    options = cluster_service.options(mode="cluster")
    source, target = cluster.nodes[0], cluster.nodes[1]
    [key] = keys_of(options, cluster, source, 1)
    name = redis_key(options, key)
    part = Part()

    def come_back() -> None:
        settle(cluster, key_slot(name), source)
        tell(source, "SET", name, _ONE)

    def nothing() -> None:
        """The slot is not where the answer says it is."""

    def replace() -> None:
        tell(source, "SET", name, _OTHER)

    with RedisStore(options) as store:
        assert store.stat(key) is None
        settle(cluster, key_slot(name), target)
        with meanwhile(_SECOND_COMMAND, come_back, nothing, replace):
            outcome = part.read_from(store, key)

        assert outcome.status is Status.HIT
        assert part.is_of(_OTHER)
        assert store.delete(key)


@pytest.mark.parametrize("has_arrived", [True, False], ids=["moved", "moving"])
@pytest.mark.parametrize("object_nbytes", [None, _NBYTES])
def test_a_part_whose_slot_moves_while_it_is_read_is_read_where_it_is_now(
    cluster: RedisCluster, cluster_service: RedisService, object_nbytes: int | None, *, has_arrived: bool
) -> None:
    options = cluster_service.options(mode="cluster")
    source, target = cluster.nodes[0], cluster.nodes[1]
    [key] = keys_of(options, cluster, source, 1)
    name = redis_key(options, key)
    part = Part()

    def move_on() -> None:
        begin_to_move(key_slot(name), [name], source, target)
        if has_arrived:
            settle(cluster, key_slot(name), target)
            tell(target, "SET", name, _OTHER)

    with RedisStore(options) as store:
        cluster_service.plant(options, key, _ONE.encode())
        with meanwhile(_THIRD_COMMAND, move_on):
            outcome = part.read_from(store, key, object_nbytes)

        assert outcome.status is Status.HIT
        assert part.is_of(_OTHER if has_arrived else _ONE)
        assert store.delete(key)
    settle(cluster, key_slot(name), source)


def test_an_object_of_which_some_chunks_have_moved_is_read_whole(
    cluster: RedisCluster, cluster_service: RedisService
) -> None:
    options = cluster_service.options(mode="cluster", chunk_nbytes=1024)
    source, target = cluster.nodes[0], cluster.nodes[1]
    [key] = keys_of(options, cluster, source, 1)
    body = body_of("moves", 5000)
    with RedisStore(options) as store:
        assert store.write(key, [body]) is WriteResult.STORED
        names = sorted(cluster_service.names(options))
        begin_to_move(key_slot(names[0]), names[::2], source, target)

        assert fetched(store, key, 0, len(body)) == body
        assert fetched(store, key, 1000, 3000) == body[1000:4000]
        assert store.stat(key) == ObjectInfo(key, len(body))
        with pytest.raises(StoreUnavailable) as caught:  # No server can run a script on keys that it has not all.
            store.delete(key)

        assert caught.value.retryable
        begin_to_move(key_slot(names[0]), names[1::2], source, target)
        assert store.delete(key)
    settle(cluster, key_slot(names[0]), source)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("object_nbytes", [None, _NBYTES])
def test_a_part_of_which_one_answer_is_an_error_is_no_miss(number: int, object_nbytes: int | None) -> None:
    answers = [b":2000\r\n", b"$1024\r\n" + b"1" * _LENGTH + b"\r\n", b":2000\r\n"]
    answers[number] = b"-LOADING Redis is loading the dataset in memory\r\n"
    left = iter(answers)

    with (
        StubRedis(lambda connection, _: connection.sendall(next(left))) as server,
        store_at(server.url) as store,
    ):
        outcome = Part().read_from(store, "a", object_nbytes)

    assert isinstance(outcome.error, StoreUnavailable)
