from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import pytest
import redis
from redis.crc import key_slot

from hicache_storage.backends.redis import RedisOptions, RedisStore
from hicache_storage.config import Secret
from hicache_storage.errors import AccessDenied, StoreUnavailable
from hicache_storage.testing.bodies import body_of
from hicache_storage.testing.hooks import fetched
from hicache_storage.testing.services.redis_server import RedisCluster, RedisSentinel, RedisServer
from hicache_storage.types import ObjectInfo, ObjectWrite, Outcome, RangeRead, Status, WriteResult
from tests.backends.redis.back_door import PATIENT_S, RedisService, redis_key

pytest_plugins = ["tests.backends.redis.services"]

_WITHIN_S = 60.0
_DEADLINE_S = 2.0
"""What is long for a node that answers."""

_CLUSTER = {"mode": "cluster"}


def keys_of(options: RedisOptions, cluster: RedisCluster, node: RedisServer, number: int) -> list[str]:
    """Return keys whose slots *node* holds."""
    keys = (f"k{i}" for i in count())
    mine = (key for key in keys if key_slot(redis_key(options, key)) in cluster.slots_of(node))
    return [next(mine) for _ in range(number)]


def written(store: RedisStore, keys: list[str]) -> list[Outcome]:
    return store.write_many([ObjectWrite(key, [body_of(key, 40_000)]) for key in keys])


def failures(outcomes: list[Outcome]) -> list[type | None]:
    return [type(outcome.error) if outcome.error is not None else None for outcome in outcomes]


def test_a_batch_goes_to_every_node(cluster: RedisCluster, cluster_service: RedisService) -> None:
    options = cluster_service.options(**_CLUSTER)
    with RedisStore(options) as store:
        keys = [f"k{i}" for i in range(60)]

        assert all(written(store, keys))

        assert all(written(store, keys))
        assert sorted(info.key for info in store.list_keys()) == sorted(keys)
    held = [int(node.ask("DBSIZE")[1:-2]) for node in cluster.nodes]
    assert min(held) > 0


def test_any_node_leads_to_the_others(cluster: RedisCluster, cluster_service: RedisService) -> None:
    nodes = f"127.0.0.1:{cluster.nodes[2].port}"
    options = cluster_service.options(**_CLUSTER, url=Secret("redis://127.0.0.1:1"), nodes=nodes)

    with RedisStore(options) as store:
        assert all(written(store, [f"k{i}" for i in range(20)]))


def test_a_paused_node_fails_its_own_keys_only_and_costs_the_deadline(
    cluster: RedisCluster, cluster_service: RedisService
) -> None:
    options = cluster_service.options(**_CLUSTER)
    per_node = {node.port: keys_of(options, cluster, node, 6) for node in cluster.nodes}
    keys = [key for trio in zip(*per_node.values(), strict=True) for key in trio]
    paused = cluster.nodes[1]
    with RedisStore(options) as patient, RedisStore(replace(options, deadline_s=_DEADLINE_S)) as store:
        assert all(written(patient, keys))
        with pausing(cluster, paused):
            began_s = time.monotonic()

            read = store.read_many([RangeRead(key, 0, [bytearray(40_000)], 40_000) for key in keys])
            exist = store.exists_many(keys)
            took_s = time.monotonic() - began_s

        wanted = [StoreUnavailable if key in per_node[paused.port] else None for key in keys]
        assert failures(read) == wanted
        assert failures(exist) == wanted
        assert took_s < 10 * _DEADLINE_S


def test_a_killed_node_fails_its_own_keys_only_until_it_is_back(
    cluster: RedisCluster, cluster_service: RedisService
) -> None:
    options = cluster_service.options(**_CLUSTER)
    per_node = {node.port: keys_of(options, cluster, node, 4) for node in cluster.nodes}
    keys = [key for trio in zip(*per_node.values(), strict=True) for key in trio]
    with RedisStore(options) as store:
        assert all(written(store, keys))
        killed = cluster.nodes[0]
        killed.kill()

        during = [failures(written(store, keys)) for _ in range(3)]
        killed.start()
        cluster.wait_until_settled()
        after = written(store, keys)

        wanted = [StoreUnavailable if key in per_node[killed.port] else None for key in keys]
        assert during == [wanted] * 3
        assert failures(after) == [None] * len(keys)
        assert {after[keys.index(key)].status for key in per_node[killed.port]} == {Status.STORED}


def test_a_slot_that_moved_is_followed(cluster: RedisCluster, cluster_service: RedisService) -> None:
    options = cluster_service.options(**_CLUSTER)
    source, target = cluster.nodes[0], cluster.nodes[1]
    [key] = keys_of(options, cluster, source, 1)
    slot = key_slot(redis_key(options, key))
    with RedisStore(options) as store:
        assert store.stat(key) is None
        with moved(cluster, slot, source, target):
            assert store.write(key, [b"0123"]) is WriteResult.STORED

            assert fetched(store, key, 1, 2) == b"12"
            assert store.delete(key)


@pytest.mark.parametrize("ttl_s", [None, 1000.0])
def test_a_slot_that_is_on_its_way_is_written_and_read(
    cluster: RedisCluster, cluster_service: RedisService, ttl_s: float | None
) -> None:
    options = cluster_service.options(**_CLUSTER, ttl_s=ttl_s)
    source, target = cluster.nodes[2], cluster.nodes[0]
    [key] = keys_of(options, cluster, source, 1)
    slot = key_slot(redis_key(options, key))
    body = body_of(key, 50_000)
    with RedisStore(options) as store:
        tell(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
        tell(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))
        try:
            assert store.write(key, [body]) is WriteResult.STORED

            read = bytearray(len(body))
            assert store.read_into(key, 0, [read], object_nbytes=len(body))
            assert read == body
            assert fetched(store, key, 1, 9) == body[1:10]
            assert store.stat(key) == ObjectInfo(key, len(body))
            assert all(store.touch_many([key]))
            assert store.delete(key)
            assert store.stat(key) is None
            assert not store.read_into(key, 1, [bytearray(1)])
            assert store.write(key, [body]) is WriteResult.STORED
        finally:
            settle(cluster, slot, target)
        assert fetched(store, key, 1, 9) == body[1:10]
        assert store.delete(key)
        settle(cluster, slot, source)


@pytest.mark.usefixtures("service")
def test_a_node_without_a_cluster_is_said_to_be_one(service: RedisService) -> None:
    with RedisStore(service.options(**_CLUSTER)) as store:
        outcomes = store.exists_many(["a", "b"])

    assert failures(outcomes) != [None, None]
    assert "cluster" in str(outcomes[0].error).lower()


def test_a_sentinel_leads_to_the_master_and_to_the_next_one() -> None:
    with RedisServer() as first, RedisServer() as second:
        second.ask("REPLICAOF", "127.0.0.1", first.port)
        wait_until(lambda: b"master_link_status:up" in second.ask("INFO", "replication"))
        with RedisSentinel(first) as sentinel:
            options = RedisOptions(url=Secret(sentinel.url), mode="sentinel", key_prefix="", deadline_s=PATIENT_S)
            with RedisStore(options) as store:
                assert store.write("before", [b"0123"]) is WriteResult.STORED
                assert first.ask("STRLEN", "before") == b":4\r\n"
                wait_until(lambda: second.ask("STRLEN", "before") == b":4\r\n")

                sentinel.fail_over()
                wait_until(lambda: b"role:master" in second.ask("INFO", "replication"))
                first.ask("REPLICAOF", "127.0.0.1", second.port)  # The sentinel does so too, but takes ten seconds.
                wait_until(lambda: bool(written(store, ["after"])[0]))

                assert second.ask("STRLEN", "after") == b":40000\r\n"
                assert fetched(store, "before", 0, 4) == b"0123"


def test_a_master_that_no_sentinel_knows_is_unavailable() -> None:
    with RedisServer() as master, RedisSentinel(master) as sentinel:
        options = RedisOptions(
            url=Secret(sentinel.url), mode="sentinel", sentinel_service="other", deadline_s=PATIENT_S
        )
        with RedisStore(options) as store, pytest.raises(StoreUnavailable, match="'other'"):
            store.stat("a")


def test_a_login_that_a_sentinel_refuses_is_denied() -> None:
    with RedisServer() as master, RedisSentinel(master) as sentinel:
        options = RedisOptions(
            url=Secret(sentinel.url),
            deadline_s=PATIENT_S,
            mode="sentinel",
            sentinel_username="nobody",
            sentinel_password=Secret("x"),
        )
        with RedisStore(options) as store, pytest.raises(AccessDenied):
            store.stat("a")


@contextmanager
def pausing(cluster: RedisCluster, node: RedisServer) -> Iterator[None]:
    """The node is silent; afterwards the others have found it again."""
    node.pause()
    try:
        yield
    finally:
        node.resume()
        cluster.wait_until_settled()


@contextmanager
def moved(cluster: RedisCluster, slot: int, source: RedisServer, target: RedisServer) -> Iterator[None]:
    """The slot belongs to *target*, which nobody has told the clients."""
    settle(cluster, slot, target)
    try:
        yield
    finally:
        settle(cluster, slot, source)


def settle(cluster: RedisCluster, slot: int, owner: RedisServer) -> None:
    """Every node agrees that the slot belongs to *owner*, and is on no way any more."""
    others = [node for node in cluster.nodes if node is not owner]
    for node in cluster.nodes:
        tell(node, "CLUSTER", "SETSLOT", slot, "STABLE")
    # Who takes a slot that is on its way to it outranks what an earlier owner may still say of it on the bus.
    with contextlib.suppress(redis.ResponseError):  # It is the owner already.
        tell(owner, "CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(others[0]))
    for node in [owner, *others]:
        tell(node, "CLUSTER", "SETSLOT", slot, "NODE", node_id(owner))


def tell(node: RedisServer, *words: str | bytes | int) -> object:
    """Return the answer of a node, which may take its time.

    Raises:
        redis.ResponseError: it is an error.
    """
    with redis.Redis(port=node.port, socket_timeout=PATIENT_S) as client:
        answer: object = client.execute_command(*words)
        return answer


def node_id(node: RedisServer) -> str:
    name = tell(node, "CLUSTER", "MYID")
    assert isinstance(name, bytes)
    return name.decode()


def wait_until(true: Callable[[], bool]) -> None:
    """Ask again and again; a server that changes its role ends its connections."""
    deadline = time.monotonic() + _WITHIN_S
    while True:
        with contextlib.suppress(OSError):
            if true():
                return
        assert time.monotonic() < deadline
