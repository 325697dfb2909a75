"""What no request can do, and how it is told so."""

from __future__ import annotations

import json
import random
import socket

import pytest

from hicache_storage.engine_integration.reference_engine.messages import Generate
from tests.cli.serve.running_server import CONTEXT_TOKENS, Reply, RunningServer
from tests.cli.serve.toy_tokenizer import VOCAB_SIZE

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

WRONG_BODIES = [
    pytest.param(b"", id="empty"),
    pytest.param(b"{", id="cut"),
    pytest.param(b"[]", id="no object"),
    pytest.param(b'"prompt"', id="text"),
    pytest.param(b"\xff\xfe{}", id="no UTF-8"),
    pytest.param(b"[" * 200_000, id="deep list"),
    pytest.param(b'{"a":' * 100_000, id="deep object"),
    pytest.param(b'{"prompt": "\\ud800"}', id="half a surrogate"),
    pytest.param(b'{"prompt": "a", "temperature": NaN}', id="NaN"),
    pytest.param(b'{"prompt": "a", "temperature": 1e999}', id="infinite"),
    pytest.param(b'{"prompt": "a", "seed": ' + b"9" * 10_000 + b"}", id="long number"),
    pytest.param(b"\0" * 1000, id="NUL"),
]

WRONG_FIELDS: list[tuple[dict[str, object], str]] = [
    ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "a", "max_tokens": "3"}, "max_tokens"),
    ({"prompt": "a", "max_tokens": True}, "max_tokens"),
    ({"prompt": "a", "temperature": -0.1}, "temperature"),
    ({"prompt": "a", "temperature": 2.1}, "temperature"),
    ({"prompt": "a", "top_p": 0}, "top_p"),
    ({"prompt": "a", "stop": ""}, "stop"),
    ({"prompt": "a", "stop": ["a", 3]}, "stop[1]"),
    ({"prompt": "a", "stop": ["a"] * 17}, "stop"),
    ({"prompt": "a", "stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"prompt": "a", "stream": "yes"}, "stream"),
    ({"prompt": "a", "stream_options": 3}, "stream_options"),
    ({}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [VOCAB_SIZE]}, "prompt"),
    ({"prompt": ["a"] * 257}, "prompt"),
    ({"prompt": "a", "cache_salt": "s" * 300}, "cache_salt"),
]

UNSUPPORTED: list[tuple[str, object]] = [
    ("n", 2),
    ("best_of", 3),
    ("echo", True),
    ("suffix", "x"),
    ("logprobs", 5),
    ("presence_penalty", 0.5),
    ("frequency_penalty", -1),
    ("logit_bias", {"5": 1}),
    ("response_format", {"type": "json_object"}),
    ("top_k", 40),
    ("lora_path", "adapter"),
]

WRONG_CHATS: list[tuple[object, str]] = [
    ([], "messages"),
    ("hi", "messages"),
    ([{"role": "robot", "content": "a"}], "messages[0].role"),
    ([{"role": "user", "content": 3}], "messages[0].content"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content"),
    ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "messages[0].tool_calls"),
    ([{"role": "assistant", "content": "the template wants the user first"}], "messages"),
]


def refused(reply: Reply, status: int, code: str | None = None) -> dict[str, object]:
    error = reply.error()
    assert (reply.status, error["code"]) == (status, code), reply.body
    return error


@pytest.mark.parametrize("body", WRONG_BODIES)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_body_that_is_no_json_is_refused(server: RunningServer, path: str, body: bytes) -> None:
    refused(server.call("POST", path, body), 400, "invalid_json")


@pytest.mark.parametrize(("fields", "param"), WRONG_FIELDS)
def test_field_that_does_not_fit_is_named(server: RunningServer, fields: dict[str, object], param: str) -> None:
    assert refused(server.call("POST", COMPLETIONS, fields), 400)["param"] == param


@pytest.mark.parametrize(("name", "value"), UNSUPPORTED)
def test_what_would_change_the_answer_is_refused_rather_than_ignored(
    server: RunningServer, name: str, value: object
) -> None:
    reply = server.call("POST", COMPLETIONS, {"prompt": "a", name: value})

    error = refused(reply, 400, "unsupported_parameter")
    assert error["param"] == name
    assert name in str(error["message"])


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("echo", True, "give false"),
        ("logprobs", 5, "give false or 0"),
        ("top_k", 40, "give -1 or 0"),
        ("response_format", {"type": "json_object"}, 'give {"type":"text"}'),
        ("audio", {}, "give null"),
    ],
)
def test_what_may_be_given_instead_is_named_as_json(
    server: RunningServer, name: str, value: object, advice: str
) -> None:
    reply = server.call("POST", COMPLETIONS, {"prompt": "a", name: value})

    assert str(reply.error()["message"]).endswith(advice)


def test_fields_that_change_nothing_are_taken(server: RunningServer) -> None:
    neutral: dict[str, object] = {
        "n": 1,
        "best_of": 1,
        "echo": False,
        "logprobs": None,
        "presence_penalty": 0.0,
        "logit_bias": {},
    }
    unknown = {"user": "me", "metadata": {"a": 1}, "service_tier": "auto", "return_hidden_states": False}

    assert server.call("POST", COMPLETIONS, {"prompt": "a"} | neutral | unknown).status == 200


@pytest.mark.parametrize(("messages", "param"), WRONG_CHATS)
def test_conversation_that_does_not_fit_is_refused(server: RunningServer, messages: object, param: str) -> None:
    assert server.post(CHAT, messages=messages).error()["param"] == param


def test_other_models_are_not_found(server: RunningServer) -> None:
    assert refused(server.post(COMPLETIONS, model="gpt", prompt="a"), 404, "model_not_found")["param"] == "model"
    refused(server.call("GET", "/v1/models/gpt"), 404, "model_not_found")


@pytest.mark.parametrize(
    ("prompt", "most", "param"),
    [
        ("a" * CONTEXT_TOKENS, None, "prompt"),
        ("a" * (CONTEXT_TOKENS + 1), 1, "prompt"),
        ("a" * (CONTEXT_TOKENS - 5), 6, "max_tokens"),
        ("a", 1 << 31, "max_tokens"),
    ],
)
def test_prompt_and_answer_fit_into_the_context(
    server: RunningServer, prompt: str, most: int | None, param: str
) -> None:
    reply = server.post(COMPLETIONS, prompt=prompt, max_tokens=most)

    assert refused(reply, 400, "context_length_exceeded")["param"] == param


@pytest.mark.parametrize(
    ("content", "most", "param"),
    [
        ("a" * CONTEXT_TOKENS, {}, "messages"),
        ("a", {"max_tokens": 1 << 31}, "max_tokens"),
        ("a", {"max_completion_tokens": 1 << 31}, "max_completion_tokens"),
    ],
)
def test_conversation_that_does_not_fit_into_the_context_is_told_by_its_own_fields(
    server: RunningServer, content: str, most: dict[str, int], param: str
) -> None:
    reply = server.call("POST", CHAT, {"messages": [{"role": "user", "content": content}]} | most)

    assert refused(reply, 400, "context_length_exceeded")["param"] == param


def test_answer_may_fill_the_context(server: RunningServer) -> None:
    reply = server.post(COMPLETIONS, prompt="a" * (CONTEXT_TOKENS - 5), max_tokens=5)

    assert reply.status == 200


def test_what_the_engine_can_never_serve_is_the_clients_fault(server: RunningServer) -> None:
    refused(server.post(COMPLETIONS, prompt="!large"), 400, "context_length_exceeded")


def test_what_the_engine_cannot_serve_now_may_be_tried_again(server: RunningServer) -> None:
    assert refused(server.post(COMPLETIONS, prompt="!refuse"), 503, "engine_failed")["type"] == "server_error"


def test_body_over_the_limit_is_refused(server: RunningServer) -> None:
    refused(server.call("POST", COMPLETIONS, b" " * ((32 << 20) + 1)), 413, "request_entity_too_large")


def test_unknown_path_and_wrong_method_are_errors_in_the_same_form(server: RunningServer) -> None:
    refused(server.call("GET", "/v1/embeddings"), 404, "not_found")
    refused(server.call("GET", COMPLETIONS), 405, "method_not_allowed")


def test_refused_requests_never_reach_the_engine(server: RunningServer) -> None:
    server.call("POST", COMPLETIONS, b"{")
    server.post(COMPLETIONS, prompt=[])
    server.post(CHAT, messages=[])

    assert not any(isinstance(command, Generate) for command in server.engine.commands)


def test_random_bytes_and_random_documents_do_no_harm(server: RunningServer, rng: random.Random) -> None:
    values: list[object] = [None, True, -1, 1.5, "", "a", [], {}, [[]], [None], {"a": {}}, "\ud83e\udd84", 1 << 70]
    names = ["prompt", "messages", "max_tokens", "stop", "stream", "seed", "model", "temperature", "stream_options"]
    for _ in range(60):
        body = rng.randbytes(rng.randrange(40))
        assert server.call("POST", COMPLETIONS, body).status == 400
        fields = {name: rng.choice(values) for name in rng.sample(names, 4)}
        assert server.call("POST", rng.choice([COMPLETIONS, CHAT]), fields).status in {200, 400, 404}

    assert server.post(COMPLETIONS, prompt="a").status == 200


def test_half_a_request_does_no_harm(server: RunningServer) -> None:
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.")

    assert server.post(COMPLETIONS, prompt="a").status == 200


@pytest.mark.parametrize("line", ["POST /v1/completions", "POST /v1/chat/completions", "PUT /hicache/storage-backend"])
def test_body_that_does_not_come_is_not_waited_for_for_ever(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr("hicache_storage.cli.serve.body.TIMEOUT_S", 0.05)

    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 408")


def test_error_of_the_server_tells_the_client_nothing_but_that(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("a secret of the server")

    monkeypatch.setattr("hicache_storage.cli.serve.schema.prompts_of", fail)
    reply = server.post(COMPLETIONS, prompt="a")

    assert refused(reply, 500, "internal_error")["type"] == "server_error"
    assert "secret" not in json.dumps(reply.json())
