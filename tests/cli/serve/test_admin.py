"""Admin endpoints: what they do, and for whom."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hicache_storage.cli.serve.store_state import StoreState, describe_store
from hicache_storage.engine_integration.reference_engine.messages import Attach, Detach, Flush
from tests.cli.serve.running_server import PATIENCE_S, Options, RunningServer, running

STORE = "/hicache/storage-backend"
NO_STORE: dict[str, object] = {"attached": False, "backend": None, "options": {}}
TOKEN = {"Authorization": "Bearer t0ken"}

ENDPOINTS = [("GET", "/flush_cache"), ("POST", "/flush_cache"), ("GET", STORE), ("PUT", STORE), ("DELETE", STORE)]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_flush_reaches_the_engine(server: RunningServer, method: str) -> None:
    assert server.call(method, "/flush_cache").json() == {"flushed": True}
    assert len(server.engine.wait_for(Flush)) == 1


def test_looking_at_the_head_flushes_nothing(server: RunningServer) -> None:
    assert server.call("HEAD", "/flush_cache").status == 405
    assert server.engine.commands == []


def test_flush_of_an_engine_that_hangs_ends(server: RunningServer) -> None:
    server.engine.be_mute()

    reply = server.call("POST", "/flush_cache?timeout=0.05")

    assert (reply.status, reply.error()["code"]) == (503, "engine_timeout")


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "x", "601"])
def test_timeout_that_is_none_is_refused(server: RunningServer, timeout: str) -> None:
    assert server.call("POST", f"/flush_cache?timeout={timeout}").error()["param"] == "timeout"


def test_store_is_attached_shown_and_detached(server: RunningServer, tmp_path: Path) -> None:
    attached = {"attached": True, "backend": "file", "options": {"path": str(tmp_path)}}
    assert server.call("GET", STORE).json() == NO_STORE

    extra = {"path": str(tmp_path)}
    assert server.call("PUT", STORE, {"backend": "file", "extra_config": extra}).json() == attached
    assert server.call("GET", STORE).json() == attached
    assert server.call("DELETE", STORE).json() == NO_STORE

    assert server.engine.wait_for(Attach)[0].backend == "file"
    assert len(server.engine.wait_for(Detach)) == 1


def test_names_of_sglang_are_taken(server: RunningServer, tmp_path: Path) -> None:
    extra = f'{{"path": "{tmp_path}"}}'
    body = {"hicache_storage_backend": "file", "hicache_storage_backend_extra_config_json": extra}

    assert server.call("PUT", STORE, body).status == 200
    assert server.engine.wait_for(Attach)[0].extra_config == extra


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "backend"),
        ({"backend": "nowhere"}, "backend"),
        ({"backend": "file", "extra_config": {"pth": "/x"}}, "backend"),
        ({"backend": "file", "extra_config": "{"}, "backend"),
        ({"backend": "file", "surprise": 1}, None),
    ],
)
def test_store_that_cannot_be_is_refused(server: RunningServer, body: object, param: str | None) -> None:
    reply = server.call("PUT", STORE, body)

    assert (reply.status, reply.error()["param"]) == (400, param)
    assert server.call("GET", STORE).json() == NO_STORE


def test_store_that_the_engine_cannot_open_is_not_attached(server: RunningServer) -> None:
    reply = server.call("PUT", STORE, {"backend": "file", "extra_config": {"path": "/broken"}})

    assert (reply.status, reply.error()["message"]) == (503, "the store cannot be reached")
    assert server.call("GET", STORE).json() == NO_STORE


def test_store_has_to_answer_unless_the_client_says_otherwise(server: RunningServer, tmp_path: Path) -> None:
    for said in ({}, {"must_answer": True}, {"must_answer": False}):
        server.call("PUT", STORE, {"backend": f"file://{tmp_path}", **said})
        server.call("DELETE", STORE)

    assert [command.must_answer for command in server.engine.wait_for(Attach, 3)] == [True, True, False]


def test_store_that_is_attached_too_late_is_detached_again(server: RunningServer, tmp_path: Path) -> None:
    server.engine.be_mute()

    reply = server.call("PUT", f"{STORE}?timeout=0.05", {"backend": f"file://{tmp_path}"})

    assert (reply.status, reply.error()["code"]) == (503, "engine_timeout")
    assert len(server.engine.wait_for(Detach)) == 1
    assert [type(command) for command in server.engine.commands] == [Attach, Detach]
    assert server.call("GET", STORE).json() == NO_STORE


def test_store_whose_client_did_not_wait_for_the_answer_is_detached_again(
    server: RunningServer, tmp_path: Path
) -> None:
    server.engine.be_mute()
    body = f'{{"backend": "file://{tmp_path}"}}'.encode()

    with socket.create_connection(server.address, timeout=PATIENCE_S) as connection:
        connection.sendall(f"PUT {STORE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        connection.sendall(body)
        server.engine.wait_for(Attach)

    server.engine.wait_for(Detach)
    assert [type(command) for command in server.engine.commands] == [Attach, Detach]
    assert server.call("GET", STORE).json() == NO_STORE


@pytest.mark.parametrize(
    "why",
    [
        "redis://u:hunter2@kv:1/0 is down",
        "a text that ends within redis://u:hunter2",
        "tp0pp0: a text that ends within redis://u:hunter2; tp1pp0: another one",
    ],
)
def test_secrets_in_what_ranks_say_of_a_store_are_not_passed_on(server: RunningServer, why: str) -> None:
    server.engine.refuses_stores = why

    reply = server.call("PUT", STORE, {"backend": "redis://u:hunter2@kv:1"})

    assert reply.status == 503
    assert "redis://***" in str(reply.error()["message"])
    assert b"hunter2" not in reply.body


def test_store_that_is_wrong_is_the_clients_fault(server: RunningServer) -> None:
    reply = server.call("PUT", STORE, {"backend": "file", "extra_config": {"path": "/unfit"}})

    assert (reply.status, reply.error()["message"], reply.error()["param"]) == (400, "no such folder", "backend")
    assert server.call("GET", STORE).json() == NO_STORE


def test_second_store_is_refused_and_so_is_detaching_none(server: RunningServer, tmp_path: Path) -> None:
    assert server.call("DELETE", STORE).error()["code"] == "not_attached"
    server.call("PUT", STORE, {"backend": f"file://{tmp_path}"})

    reply = server.call("PUT", STORE, {"backend": f"file://{tmp_path}"})

    assert (reply.status, reply.error()["code"]) == (409, "attached")


def test_server_without_a_host_tier_attaches_nothing() -> None:
    with running(Options(may_attach=False)) as server:
        reply = server.call("PUT", STORE, {"backend": "file"})

    assert reply.status == 409
    assert "--enable-hierarchical-cache" in str(reply.error()["message"])


def test_secrets_of_a_store_are_never_shown() -> None:
    state = describe_store("redis://user:hunter2@kv:6379", '{"password": "s3cret"}')
    with running(Options(store=state)) as server:
        shown = server.call("GET", STORE)

    assert shown.json()["backend"] == "redis"
    assert b"hunter2" not in shown.body
    assert b"s3cret" not in shown.body


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_without_a_token_they_are_off_where_others_reach_the_server(method: str, path: str) -> None:
    with running(Options(host="0.0.0.0")) as server:
        reply = server.call(method, path, b"{}")

    assert (reply.status, reply.error()["code"]) == (403, "admin_disabled")
    assert "--admin-token" in str(reply.error()["message"])


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_with_a_token_they_ask_for_it_everywhere(host: str, method: str, path: str) -> None:
    with running(Options(host=host, token="t0ken")) as server:
        for wrong in (
            {},
            {"Authorization": "Bearer other"},
            {"Authorization": "t0ken"},
            {"Authorization": "Basic t0ken"},
        ):
            reply = server.call(method, path, b"{}", wrong)
            assert (reply.status, reply.error()["code"]) == (401, "invalid_admin_token")
            assert reply.headers["WWW-Authenticate"] == "Bearer"


def test_who_has_the_token_may() -> None:
    store = StoreState("file", {})
    with running(Options(host="0.0.0.0", token="t0ken", store=store)) as server:
        assert server.call("POST", "/flush_cache", headers=TOKEN).status == 200
        assert server.call("DELETE", STORE, headers=TOKEN).status == 200


def test_generating_and_looking_need_no_token() -> None:
    with running(Options(host="0.0.0.0", token="t0ken")) as server:
        assert server.post("/v1/completions", prompt="a").status == 200
        assert [server.call("GET", path).status for path in ("/health", "/metrics", "/v1/models")] == [200] * 3


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_web_page_in_a_browser_of_this_machine_is_not_this_machine(
    server: RunningServer, headers: dict[str, str]
) -> None:
    reply = server.call("POST", "/flush_cache", headers=headers)

    assert (reply.status, reply.error()["code"]) == (403, "admin_disabled")


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:30000", "127.1.2.3:80"])
def test_this_machine_has_several_names(server: RunningServer, host: str) -> None:
    assert server.call("POST", "/flush_cache", headers={"Host": host}).status == 200
