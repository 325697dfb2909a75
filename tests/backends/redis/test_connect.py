from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from hicache_storage.backends.redis import RedisOptions, RedisStore
from hicache_storage.config import Secret
from hicache_storage.errors import AccessDenied, ConfigError, StoreError, StoreUnavailable
from hicache_storage.registry import open_store
from hicache_storage.testing.bodies import body_of
from hicache_storage.testing.hooks import fetched
from hicache_storage.testing.services.redis_server import RedisServer
from hicache_storage.types import ObjectWrite, Status
from tests.backends.redis.back_door import PATIENT_S, RedisService, redis_options
from tests.backends.redis.certificate import TLSTerminator
from tests.certificates import write_certificate

pytest_plugins = ["tests.backends.redis.services"]

_BODY = body_of("connect", 300_000)


def moves_bytes(options: RedisOptions) -> bool:
    """Write a batch and read it back; say whether that went well."""
    with RedisStore(options) as store:
        outcomes = store.write_many([ObjectWrite(f"k{i}", [_BODY]) for i in range(6)])
        whole = [fetched(store, f"k{i}", 0, len(_BODY)) == _BODY for i in range(6)]
        return all(outcomes) and all(whole) and fetched(store, "k3", 7, 99_999) == _BODY[7:100_006]


# -- where and as whom -----------------------------------------------------------------------------


def test_a_unix_socket_is_a_server_too(redis_server: RedisServer, service: RedisService) -> None:
    assert moves_bytes(service.options(url=Secret(f"unix://{redis_server.socket_path}")))


@pytest.mark.parametrize("where", ["url", "option"])
def test_databases_are_separate(redis_server: RedisServer, where: str) -> None:
    options = RedisOptions(url=Secret(redis_server.url + "/3" * (where == "url")), db=3 if where == "option" else None)

    with RedisStore(options) as store, redis.Redis(port=redis_server.port, db=3) as client:
        store.write("in-three", [b"x"])

        assert client.get("hicache:in-three") == b"x"


def test_stores_with_different_prefixes_do_not_see_each_other(service: RedisService) -> None:
    with RedisStore(service.options()) as one, RedisStore(service.options()) as other:
        one.write("a", [b"x"])

        assert other.stat("a") is None
        assert list(other.list_keys()) == []


@pytest.fixture
def guarded_server(own_server: RedisServer) -> RedisServer:
    """A server with a password, and a user who may only read."""
    own_server.ask("ACL", "SETUSER", "reader", "on", ">reads", "~*", "+@read", "+@connection")
    own_server.ask("ACL", "SETUSER", "writer", "on", ">p@ss/w:rd", "~*", "+@all")
    own_server.ask("CONFIG", "SET", "requirepass", "secret")
    return own_server


@pytest.mark.parametrize(
    "login",
    [
        lambda port: {"url": Secret(f"redis://:secret@127.0.0.1:{port}")},
        lambda port: {"url": Secret(f"redis://writer:p%40ss%2Fw%3Ard@127.0.0.1:{port}")},
        lambda port: {"url": Secret(f"redis://127.0.0.1:{port}"), "password": Secret("secret")},
        lambda port: {
            "url": Secret(f"redis://x:y@127.0.0.1:{port}"),
            "username": "writer",
            "password": Secret("p@ss/w:rd"),
        },
    ],
    ids=["password in url", "user in url", "password", "user"],
)
def test_a_login_opens_a_guarded_server(guarded_server: RedisServer, login: Callable[[int], dict[str, object]]) -> None:
    assert moves_bytes(redis_options(**login(guarded_server.port), deadline_s=PATIENT_S))


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:{}", "redis://:wrong@127.0.0.1:{}", "redis://nobody:x@127.0.0.1:{}"]
)
def test_a_wrong_login_is_denied_and_not_worth_a_retry(guarded_server: RedisServer, url: str) -> None:
    with RedisStore(RedisOptions(url=Secret(url.format(guarded_server.port)), deadline_s=PATIENT_S)) as store:
        with pytest.raises(AccessDenied) as caught:
            store.stat("a")
        outcomes = store.exists_many(["a", "b"])

    assert not caught.value.retryable
    assert "wrong" not in str(caught.value)
    assert [type(outcome.error) for outcome in outcomes] == [AccessDenied] * 2


def test_a_user_without_the_right_to_write_is_denied_only_that(guarded_server: RedisServer) -> None:
    with RedisStore(
        RedisOptions(url=Secret(f"redis://reader:reads@127.0.0.1:{guarded_server.port}"), deadline_s=PATIENT_S)
    ) as store:
        with pytest.raises(AccessDenied):
            store.write("a", [b"x"])

        assert store.stat("a") is None


@pytest.mark.parametrize("mode", ["standalone", "cluster", "sentinel"])
@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"], ids=["empty label", "long label"])
def test_a_host_that_no_name_can_be_is_a_failure(host: str, mode: str) -> None:
    with RedisStore(redis_options(url=Secret(f"redis://{host}:6379"), mode=mode, deadline_s=PATIENT_S)) as store:
        with pytest.raises(StoreError, match=host[:4]) as caught:
            store.stat("a")
        [outcome] = store.exists_many(["a"])

    assert not caught.value.retryable
    assert outcome.error is not None


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture
def tls(tmp_path: Path, redis_server: RedisServer) -> Iterator[tuple[str, Path, Path]]:
    """The URL of the server behind TLS, and its certificate and key."""
    certificate, key = write_certificate(tmp_path)
    with TLSTerminator(redis_server.port, certificate, key) as terminator:
        yield terminator.url, certificate, key


def test_bytes_move_over_tls(service: RedisService, tls: tuple[str, Path, Path]) -> None:
    url, certificate, _ = tls

    assert moves_bytes(service.options(url=Secret(url), tls_ca_path=certificate))


def test_a_deadline_may_be_longer_than_a_timer_can_run(service: RedisService, tls: tuple[str, Path, Path]) -> None:
    url, certificate, _ = tls

    assert moves_bytes(service.options(deadline_s=1e20))
    assert moves_bytes(service.options(deadline_s=1e20, url=Secret(url), tls_ca_path=certificate))


def test_a_certificate_that_nobody_vouches_for_is_refused(service: RedisService, tls: tuple[str, Path, Path]) -> None:
    url, _, _ = tls
    options = service.options(url=Secret(url))

    with RedisStore(options) as store, pytest.raises(AccessDenied, match=r"(?i)certificate"):
        store.stat("a")


def test_a_certificate_of_another_host_is_refused_unless_its_name_does_not_count(
    service: RedisService, tmp_path: Path, redis_server: RedisServer
) -> None:
    certificate, key = write_certificate(tmp_path, "192.0.2.1")
    with TLSTerminator(redis_server.port, certificate, key) as terminator:
        options = {"url": Secret(terminator.url), "tls_ca_path": certificate}

        with RedisStore(service.options(**options)) as store, pytest.raises(AccessDenied):
            store.stat("a")
        assert moves_bytes(service.options(**options, tls_verify="ca"))
        assert moves_bytes(service.options(url=Secret(terminator.url), tls_verify="none"))


def test_a_client_certificate_is_shown_to_a_server_that_asks(
    service: RedisService, tmp_path: Path, redis_server: RedisServer
) -> None:
    certificate, key = write_certificate(tmp_path)
    with TLSTerminator(redis_server.port, certificate, key, client_ca=certificate) as terminator:
        options = {"url": Secret(terminator.url), "tls_ca_path": certificate}

        assert moves_bytes(service.options(**options, tls_cert_path=certificate, tls_key_path=key))
        with RedisStore(service.options(**options)) as store, pytest.raises(StoreUnavailable):
            store.stat("a")


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"url": Secret("http://127.0.0.1")},
        {"url": Secret("127.0.0.1:6379")},
        {"url": Secret("redis://127.0.0.1:port")},
        {"url": Secret("redis://127.0.0.1/kv")},
        {"url": Secret("redis://127.0.0.1?socket_timeout=3")},
        {"url": Secret("unix:///tmp/s"), "mode": "cluster"},
        {"url": Secret("redis://127.0.0.1/2"), "mode": "cluster"},
        {"mode": "cluster", "db": 1},
        {"mode": "proxy"},
        {"nodes": "a:b"},
        {"nodes": "a:1,::1"},
        {"key_prefix": "{one slot}"},
        {"ttl_s": 0},
        {"deadline_s": float("nan")},
        {"chunk_nbytes": "1GiB"},
        {"io_threads": 0},
        {"tls_key_path": Path("key.pem")},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        RedisStore(redis_options(**values))


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@127.0.0.1/kv",
        "redis://:12345/hunter2@127.0.0.1",  # What should have been escaped makes a path, or options, of a password.
        "redis://:12345?hunter2=x@127.0.0.1",
    ],
)
def test_no_error_shows_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisStore(RedisOptions(url=Secret(url)))

    assert "hunter2" not in str(caught.value)


def test_options_show_no_password() -> None:
    assert "hunter2" not in repr(RedisOptions(url=Secret("redis://:hunter2@h"), password=Secret("hunter2")))


def test_a_store_opens_by_class_with_options_in_words(redis_server: RedisServer) -> None:
    words = {"url": redis_server.url, "key_prefix": "words:", "deadline_s": "2.5", "nodes": "a, b:7000"}

    with open_store("hicache_storage.backends.redis:RedisStore", words) as store:
        assert store.write("a", [b"x"])
        assert store.delete("a")


# -- processes -------------------------------------------------------------------------------------


def test_a_forked_child_uses_connections_of_its_own(service: RedisService) -> None:
    options = service.options()
    with RedisStore(options) as store:
        store.write_many([ObjectWrite(f"k{i}", [_BODY]) for i in range(8)])

        child = os.fork()
        if child == 0:
            try:
                right = all(fetched(store, f"k{i}", 0, len(_BODY)) == _BODY for i in range(8))
                right = right and store.write_many([ObjectWrite("child", [b"x"])])[0].status is Status.STORED
            except StoreError:
                right = False
            os._exit(0 if right else 1)
        mine = [fetched(store, f"k{i}", 0, len(_BODY)) == _BODY for i in range(8)]

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert mine == [True] * 8
        assert fetched(store, "child", 0, 1) == b"x"


def test_importing_the_options_and_the_store_connects_to_nothing() -> None:
    code = "from hicache_storage.backends.redis import *; RedisStore(RedisOptions(url='redis://192.0.2.1')).close()"

    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
