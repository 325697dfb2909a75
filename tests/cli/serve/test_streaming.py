"""Answers as server-sent events, and clients that leave."""

from __future__ import annotations

import json
import logging
import socket
from http.client import HTTPException
from typing import cast

import pytest
from aiohttp import web

from hicache_storage.engine_integration.reference_engine.messages import Abort, Generate
from tests.cli.serve.running_server import Reply, RunningServer
from tests.cli.serve.toy_tokenizer import EOS

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


def parts(reply: Reply) -> list[dict[str, object]]:
    """Return the only choice of each chunk that has one."""
    listed = [cast("list[dict[str, object]]", event["choices"]) for event in reply.events()]
    return [choices[0] for choices in listed if choices]


def open_request(server: RunningServer, path: str, **fields: object) -> socket.socket:
    """Send a request and return the connection, of which nothing has been read."""
    connection = socket.create_connection(server.address, timeout=60)
    body = json.dumps(fields).encode()
    connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def test_chunks_of_a_completion_join_to_its_text(server: RunningServer) -> None:
    reply = server.post(COMPLETIONS, prompt="abcdefgh", max_tokens=10, stream=True)

    assert reply.headers["Content-Type"].startswith("text/event-stream")
    assert "".join(str(part["text"]) for part in parts(reply)) == "abcdefghab"
    assert [part["finish_reason"] for part in parts(reply)] == [None] * 9 + ["length"]
    assert all("usage" not in event for event in reply.events())


def test_chat_begins_with_the_role_and_ends_with_the_reason(server: RunningServer) -> None:
    reply = server.post(CHAT, messages=[{"role": "user", "content": "hi"}], max_tokens=3, stream=True)

    assert [part["delta"] for part in parts(reply)] == [
        {"role": "assistant", "content": "<"},
        {"content": "u"},
        {"content": "s"},
    ]
    assert parts(reply)[-1]["finish_reason"] == "length"


def test_usage_comes_behind_everything_where_it_is_wanted(server: RunningServer) -> None:
    reply = server.post(
        COMPLETIONS, prompt="abcdefgh", max_tokens=2, stream=True, stream_options={"include_usage": True}
    )

    *others, last = reply.events()
    assert [event["usage"] for event in others] == [None, None]
    assert last["choices"] == []
    assert cast("dict[str, object]", last["usage"])["prompt_tokens_details"] == {
        "cached_tokens": 6,
        "cached_tokens_by_tier": {"device": 1, "host": 2, "store": 3},
    }


@pytest.mark.parametrize("stream", [False, True])
def test_cached_tokens_are_where_sglangs_clients_look_for_them(server: RunningServer, stream: bool) -> None:
    reply = server.post(COMPLETIONS, prompt="abcdefgh", max_tokens=2, stream=stream, return_cached_tokens_details=True)

    last = reply.events()[-1] if stream else reply.json()
    assert last["sglext"] == {"cached_tokens_details": {"device": 1, "host": 2, "storage": 3}}
    assert ("usage" in last) != stream, "a stream has usage where it was asked for"


def test_chunk_never_holds_a_part_of_a_character(server: RunningServer) -> None:
    reply = server.post(COMPLETIONS, prompt="aé🦄", max_tokens=7, stream=True)

    assert [part["text"] for part in parts(reply)] == ["a", "é", "🦄"]


def test_stop_string_never_shows(server: RunningServer) -> None:
    reply = server.post(COMPLETIONS, prompt="abcabd", max_tokens=50, stream=True, stop="abd")

    assert "".join(str(part["text"]) for part in parts(reply)) == "abc"
    assert parts(reply)[-1]["finish_reason"] == "stop"


def test_prompts_of_a_batch_are_told_apart_by_their_index(server: RunningServer) -> None:
    reply = server.post(COMPLETIONS, prompt=["ab", "xyz"], max_tokens=4, stream=True)

    texts = {0: "", 1: ""}
    for part in parts(reply):
        texts[cast("int", part["index"])] += str(part["text"])
    assert texts == {0: "abab", 1: "xyzx"}


def test_tokens_come_beside_the_text_where_they_are_wanted(server: RunningServer) -> None:
    reply = server.post(COMPLETIONS, prompt=[97, 98, EOS], max_tokens=9, stream=True, return_token_ids=True)

    assert [part["token_ids"] for part in parts(reply)] == [[97], [98], [EOS]]
    assert [part.get("prompt_token_ids") for part in parts(reply)] == [[97, 98, EOS], None, None]


def test_failure_before_the_first_token_is_an_http_error(server: RunningServer) -> None:
    reply = server.post(COMPLETIONS, prompt="!refuse", stream=True)

    assert (reply.status, reply.error()["code"]) == (503, "engine_failed")


def test_failure_after_the_first_token_is_the_last_event(server: RunningServer) -> None:
    reply = server.post(COMPLETIONS, prompt="!abort", stream=True)

    *_, last, end = reply.body.decode().split("\n\n")
    assert (reply.status, end) == (200, "")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "aborted"


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_aborts_its_request(server: RunningServer, stream: bool) -> None:
    connection = open_request(server, COMPLETIONS, prompt="!hold", stream=stream)
    request = server.engine.wait_for(Generate)[0]

    connection.close()

    assert server.engine.wait_for(Abort)[0].request_id == request.request_id


def test_client_that_leaves_in_the_middle_of_a_stream_aborts_its_request(server: RunningServer) -> None:
    connection = open_request(server, COMPLETIONS, prompt="!hold", stream=True)
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")

    connection.close()

    assert server.engine.wait_for(Abort)


@pytest.mark.parametrize("prompt", ["abc", ["abc", "xyz"]], ids=["one", "batch"])
def test_client_that_is_gone_when_a_piece_is_sent_is_no_error_of_the_server(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, prompt: object
) -> None:
    async def write(_response: web.StreamResponse, _data: bytes) -> None:
        raise ConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr("aiohttp.web.StreamResponse.write", write)

    with pytest.raises((OSError, HTTPException)):
        server.post(COMPLETIONS, prompt=prompt, max_tokens=3, stream=True)

    assert 'outcome="abandoned"' in server.call("GET", "/metrics").body.decode()
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_client_that_leaves_aborts_every_prompt_of_its_batch(server: RunningServer) -> None:
    connection = open_request(server, COMPLETIONS, prompt=["!hold", "!hold2"])
    requests = server.engine.wait_for(Generate, 2)

    connection.close()

    aborts = server.engine.wait_for(Abort, 2)
    assert {abort.request_id for abort in aborts} == {request.request_id for request in requests}


def test_one_refused_prompt_aborts_the_others_of_its_batch(server: RunningServer) -> None:
    reply = server.post(COMPLETIONS, prompt=["!hold", "!refuse"])

    assert reply.status == 503
    held = server.engine.wait_for(Generate)[0]
    assert server.engine.wait_for(Abort)[0].request_id == held.request_id


def test_request_that_ended_is_not_aborted(server: RunningServer) -> None:
    server.post(COMPLETIONS, prompt="a")
    server.call("POST", "/flush_cache")

    assert not any(isinstance(command, Abort) for command in server.engine.commands)
