"""OpenAI's own client as a user has it."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from hicache_storage.engine_integration.reference_engine.messages import Abort
from tests.cli.serve.running_server import MODEL, RunningServer


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="abcdefgh", max_tokens=10)

    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("abcdefghab", "length")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 6
    assert answer.usage.prompt_tokens_details.model_extra == {
        "cached_tokens_by_tier": {"device": 1, "host": 2, "store": 3}
    }


def test_streamed_completion(client: openai.OpenAI) -> None:
    stream = client.completions.create(model=MODEL, prompt="aé", max_tokens=6, stream=True)

    assert "".join(chunk.choices[0].text for chunk in stream) == "aéaé"


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], max_completion_tokens=6, temperature=0, seed=1
    )

    assert answer.choices[0].message.content == "<user>"


def test_streamed_chat_with_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}],
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )

    *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "<system>"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.usage is not None
    assert (last.choices, last.usage.completion_tokens) == ([], 8)


def test_our_own_fields_go_through_its_extra_body(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=[1, 2], max_tokens=3, extra_body={"return_token_ids": True, "ignore_eos": True}
    )

    assert answer.choices[0].model_extra == {"token_ids": [1, 2, 1], "prompt_token_ids": [1, 2]}


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_leaving_a_stream_aborts_the_request(client: openai.OpenAI, server: RunningServer) -> None:
    stream = client.completions.create(model=MODEL, prompt="!hold", max_tokens=9, stream=True)
    assert next(iter(stream)).choices[0].text == "!"

    stream.close()

    assert server.engine.wait_for(Abort)


def test_its_errors_are_of_the_right_class(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="echo is not supported") as refused:
        client.completions.create(model=MODEL, prompt="a", echo=True)
    assert (refused.value.param, refused.value.code) == ("echo", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.InternalServerError, match="no room"):
        client.completions.create(model=MODEL, prompt="!refuse")


def test_failure_within_a_stream_raises(client: openai.OpenAI) -> None:
    stream = client.completions.create(model=MODEL, prompt="!abort", max_tokens=9, stream=True)

    with pytest.raises(openai.APIError, match="the engine aborted the request"):
        list(stream)
