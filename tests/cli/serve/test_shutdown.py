"""How a server ends: drained, in a hurry, or with its engine."""

from __future__ import annotations

import http.client
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from hicache_storage.cli import exit_codes
from hicache_storage.cli.serve.lifecycle import bind
from hicache_storage.engine_integration.consensus import Differs, Divergence
from hicache_storage.engine_integration.consensus.entry import Entry, Rank
from hicache_storage.engine_integration.reference_engine.messages import Abort, Generate, Shutdown
from hicache_storage.errors import ConfigError
from tests.cli.serve.running_server import PATIENCE_S, Options, RunningServer, running

COMPLETIONS = "/v1/completions"
PARTED = Divergence(
    7,
    Differs.PARAMETERS,
    {Rank(0, tp): Entry(7, "call", "f", f"request.id='another-{tp}', tokens=[7, 8]", 0.0) for tp in range(2)},
    before=(),
).failure([Rank(0, 0), Rank(0, 1)])
"""What a rank says that was compared with another."""


def test_server_with_nothing_to_do_stops_at_once(server: RunningServer) -> None:
    server.order_stop()

    assert server.wait() == exit_codes.DONE
    assert server.engine.wait_for(Shutdown)


def test_running_request_may_end(server: RunningServer) -> None:
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, COMPLETIONS, prompt="!hold", max_tokens=7)
        server.engine.wait_for(Generate)
        server.order_stop()
        server.engine.release()

        assert (answer.result(PATIENCE_S).status, server.wait()) == (200, exit_codes.DONE)
    assert not any(isinstance(command, Abort) for command in server.engine.commands)


def test_second_order_ends_what_runs(server: RunningServer) -> None:
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, COMPLETIONS, prompt="!hold")
        server.engine.wait_for(Generate)
        server.order_stop(2)

        reply = answer.result(PATIENCE_S)

    assert (reply.status, reply.error()["code"]) == (503, "shutting_down")
    assert server.wait() == exit_codes.DONE
    assert server.engine.wait_for(Abort)


def test_drain_has_an_end() -> None:
    with running(Options(drain_timeout_s=0.05)) as server, ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, COMPLETIONS, prompt="!hold")
        server.engine.wait_for(Generate)
        server.order_stop()

        assert answer.result(PATIENCE_S).status == 503
        assert server.wait() == exit_codes.DONE


def test_engine_that_takes_no_command_is_ended_all_the_same(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hicache_storage.cli.serve.lifecycle._ENGINE_TIMEOUT_S", 0.05)
    server.engine.be_stuck()

    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, COMPLETIONS, prompt="a")
        assert server.engine.stuck.wait(PATIENCE_S)
        server.order_stop(2)

        assert answer.result(PATIENCE_S).status == 503
        assert server.wait() == exit_codes.DONE


def test_server_that_drains_begins_nothing_new(server: RunningServer) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        waiting.request("GET", "/health")
        assert waiting.getresponse().read() == b'{"status":"ok"}'
        answer = pool.submit(server.post, COMPLETIONS, prompt="!hold", max_tokens=2)
        server.engine.wait_for(Generate)

        server.order_stop()
        waiting.request("POST", COMPLETIONS, b'{"prompt": "a"}')

        assert waiting.getresponse().status == 503
        waiting.close()
        server.engine.release()
        assert answer.result(PATIENCE_S).status == 200
    assert len(server.engine.wait_for(Generate)) == 1


def test_engine_that_dies_ends_every_request_and_the_server(
    server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, COMPLETIONS, prompt="!hold")
        server.engine.wait_for(Generate)
        server.engine.die("tp0pp0: killed by SIGKILL")

        reply = answer.result(PATIENCE_S)

    assert (reply.status, reply.error()["code"]) == (503, "engine_ended")
    assert server.wait() == exit_codes.MISSING
    assert "killed by SIGKILL" in capsys.readouterr().err


def test_why_an_engine_has_ended_is_told_once(
    server: RunningServer, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    server.engine.die("tp0pp0: killed by SIGKILL")

    assert server.wait() == exit_codes.MISSING
    told = capsys.readouterr().err + caplog.text
    assert told.count("killed by SIGKILL") == 1
    assert told.startswith("hicache: the engine has ended: ")


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (f"tp0pp0: RankFailure: {PARTED}", "the engine has ended: its ranks have parted; the server's log says where"),
        ("tp0pp0: OSError: /kv/secret is full", "the engine has ended; the server's log says why"),
    ],
)
def test_client_is_not_told_what_the_engine_did_for_others(reason: str, message: str, server: RunningServer) -> None:
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, COMPLETIONS, prompt="!hold")
        server.engine.wait_for(Generate)
        server.engine.die(reason)

        assert answer.result(PATIENCE_S).error()["message"] == message
    assert server.wait() == exit_codes.MISSING


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (1, "stopping: 1 request may go on for 60 s; a second signal ends it at once\n"),
        (2, "stopping: 2 requests may go on for 60 s; a second signal ends them at once\n"),
    ],
)
def test_server_that_drains_says_how_long_and_what_ends_it_sooner(
    number: int, said: str, server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(server.post, COMPLETIONS, prompt="!hold") for _ in range(number)]
        server.engine.wait_for(Generate, number)
        server.order_stop(2)

        assert [answer.result(PATIENCE_S).status for answer in answers] == [503] * number
    assert server.wait() == exit_codes.DONE
    assert capsys.readouterr().err == said


def test_port_that_is_taken_is_named() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(ConfigError, match=f"--port {port}: Address already in use"):
            bind("127.0.0.1", port)


def test_host_that_is_not_here_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--host 192\.0\.2\.1 --port 0"):
        bind("192.0.2.1", 0)


def test_port_can_be_taken_again_at_once(server: RunningServer) -> None:
    server.post(COMPLETIONS, prompt="a")
    address = server.address
    server.order_stop()
    server.wait()

    with bind(*address) as again:
        assert again.getsockname() == address
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
