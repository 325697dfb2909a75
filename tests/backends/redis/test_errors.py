from __future__ import annotations

import inspect

import pytest
import redis.exceptions

from hicache_storage.backends.redis import RedisStore
from hicache_storage.backends.redis.errors import BY_EXCEPTION, ConnectionLost, ReplyError, connecting, store_error
from hicache_storage.errors import AccessDenied, CorruptObject, StoreError, StoreFull, StoreUnavailable, Unsupported
from hicache_storage.testing.hooks import fetched
from hicache_storage.testing.services.redis_server import RedisServer
from hicache_storage.types import Status, WriteResult
from tests.backends.redis.back_door import RedisService, redis_key

pytest_plugins = ["tests.backends.redis.services"]

_SDK_EXCEPTIONS = {
    name: kind
    for name, kind in vars(redis.exceptions).items()
    if inspect.isclass(kind) and issubclass(kind, BaseException) and kind.__module__ == "redis.exceptions"
}


@pytest.mark.parametrize("name", _SDK_EXCEPTIONS)
def test_every_exception_of_the_sdk_has_a_meaning(name: str) -> None:
    assert name in BY_EXCEPTION


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreFull),
        ("NOAUTH Authentication required.", AccessDenied),
        ("WRONGPASS invalid username-password pair or user is disabled.", AccessDenied),
        ("NOPERM this user has no permissions to run the 'set' command", AccessDenied),
        ("DENIED Redis is running in protected mode", AccessDenied),
        ("READONLY You can't write against a read only replica.", StoreUnavailable),
        ("LOADING Redis is loading the dataset in memory", StoreUnavailable),
        ("BUSY Redis is busy running a script", StoreUnavailable),
        ("CLUSTERDOWN Hash slot not served", StoreUnavailable),
        ("MASTERDOWN Link with MASTER is down", StoreUnavailable),
        ("TRYAGAIN Multiple keys request during rehashing of slot", StoreUnavailable),
        ("MOVED 3999 127.0.0.1:6381", StoreUnavailable),
        ("ASK 3999 127.0.0.1:6381", StoreUnavailable),
        ("ERR max number of clients reached", StoreUnavailable),
        ("ERR unknown command `UNLINK`, with args beginning with: ", Unsupported),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", CorruptObject),
        ("ERR something nobody has foreseen", StoreError),
        ("ERR Error running script (call to f_b3): @user_script:3: @user_script: 3: -OOM command not", StoreFull),
        ("ERR Error running script (call to f_b3): @user_script:3: @user_script: 3: -READONLY You", StoreUnavailable),
        ("ERR Error running script (call to f_b3): The user can't run this command or subcommand", AccessDenied),
        ("ERR ACL failure in script: User u has no permissions to run the 'unlink' command", AccessDenied),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_answers_have_a_meaning(said: str, meaning: type[StoreError]) -> None:
    error = store_error(ReplyError(said), op="read", key="k")

    assert type(error) is meaning
    assert (error.op, error.key, error.backend) == ("read", "k", "redis")
    assert isinstance(error.__cause__, ReplyError)


def test_a_lost_connection_is_unavailable() -> None:
    assert type(store_error(ConnectionLost("gone"), op="read")) is StoreUnavailable


def test_what_nobody_has_foreseen_passes_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), connecting("here"):
        raise ZeroDivisionError


def test_a_replica_is_unavailable_for_writes_and_read_all_the_same(own_server: RedisServer) -> None:
    with RedisStore(RedisService(own_server.url, redis.Redis()).options(key_prefix="")) as store:
        store.write("a", [b"0123"])
        own_server.ask("CONFIG", "SET", "replica-serve-stale-data", "yes")
        own_server.ask("REPLICAOF", "127.0.0.1", 1)

        with pytest.raises(StoreUnavailable) as caught:
            store.write("b", [b"x"])

        assert caught.value.retryable
        assert fetched(store, "a", 0, 4) == b"0123"


def test_an_error_within_a_script_means_what_it_means_elsewhere(own_server: RedisServer) -> None:
    """Servers before Redis 7 put other words before it."""
    options = RedisService(own_server.url, redis.Redis()).options(chunk_nbytes=1024)
    with RedisStore(options) as store:
        store.write("a", [bytes(3000)])
        own_server.ask("ACL", "SETUSER", "default", "-unlink")
        with pytest.raises(AccessDenied):
            store.delete("a")
        own_server.ask("ACL", "SETUSER", "default", "+unlink")
        own_server.ask("REPLICAOF", "127.0.0.1", 1)

        with pytest.raises(StoreUnavailable) as caught:
            store.delete("a")

    assert isinstance(caught.value.__cause__, ReplyError)
    assert caught.value.__cause__.code == "READONLY"


@pytest.mark.parametrize("fill", ["hash", "list", "hash with odd fields"])
def test_a_value_that_is_no_object_is_corrupt_and_can_be_replaced(service: RedisService, fill: str) -> None:
    options = service.options()
    key = redis_key(options, "a")
    if fill == "list":
        service.client.rpush(key, "x")
    else:
        odd = ["nonce", "n", "nbytes", "many", "chunk_nbytes", "0"] if "odd" in fill else ["x", "y"]
        service.client.hset(key, items=odd)
    with RedisStore(options) as store:
        with pytest.raises(CorruptObject):
            store.read_into("a", 0, [bytearray(4)], object_nbytes=4)
        with pytest.raises(CorruptObject):
            store.read_into("a", 1, [bytearray(2)])
        with pytest.raises(CorruptObject):
            store.stat("a")
        assert list(store.list_keys()) == []
        assert store.exists_many(["a"])[0].status is Status.HIT

        assert store.write("a", [b"0123"]) is WriteResult.STORED

        assert service.observe(options, "a") == b"0123"


def test_a_value_that_is_no_object_can_be_quarantined(service: RedisService) -> None:
    options = service.options()
    service.client.rpush(redis_key(options, "a"), "x")
    with RedisStore(options) as store:
        assert store.quarantine("a")

        assert store.stat("a") is None
