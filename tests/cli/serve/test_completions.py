"""/v1/completions and /v1/chat/completions, answered as a whole."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import pytest

from hicache_storage.cli.serve.tokenizer import NoTokenizer
from hicache_storage.engine_integration.reference_engine.messages import Abort, Generate
from tests.cli.serve.running_server import CONTEXT_TOKENS, MODEL, Options, Reply, RunningServer, running
from tests.cli.serve.toy_tokenizer import EOS

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


def choices(reply: Reply) -> list[dict[str, object]]:
    assert reply.status == 200, reply.body
    return cast("list[dict[str, object]]", reply.json()["choices"])


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_completion_has_the_form_of_openai(server: RunningServer) -> None:
    document = server.post(COMPLETIONS, model=MODEL, prompt="abcdefgh", max_tokens=10).json()

    assert str(document.pop("id")).startswith("cmpl-")
    assert isinstance(document.pop("created"), int)
    assert document == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [{"index": 0, "text": "abcdefghab", "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 8,
            "completion_tokens": 10,
            "total_tokens": 18,
            "prompt_tokens_details": {
                "cached_tokens": 6,
                "cached_tokens_by_tier": {"device": 1, "host": 2, "store": 3},
            },
        },
    }


def test_chat_has_the_form_of_openai(server: RunningServer) -> None:
    document = server.post(CHAT, messages=user("hi"), max_tokens=6).json()

    assert str(document.pop("id")).startswith("chatcmpl-")
    assert document["object"] == "chat.completion"
    assert document["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "<user>", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]


def test_several_prompts_are_answered_in_their_order(server: RunningServer) -> None:
    reply = server.post(COMPLETIONS, prompt=["abc", "xy"], max_tokens=4)

    assert [(choice["index"], choice["text"]) for choice in choices(reply)] == [(0, "abca"), (1, "xyxy")]
    usage = cast("dict[str, int]", reply.json()["usage"])
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 8)


@pytest.mark.parametrize("prompt", ["ab", [97, 98], ["ab"], [[97, 98]]])
def test_prompt_is_text_or_tokens(server: RunningServer, prompt: object) -> None:
    reply = server.post(COMPLETIONS, prompt=prompt, max_tokens=3)

    assert [choice["text"] for choice in choices(reply)] == ["aba"]


def test_completion_is_sixteen_tokens_long_unless_told(server: RunningServer) -> None:
    server.post(COMPLETIONS, prompt="a")

    assert server.engine.wait_for(Generate)[0].max_new_tokens == 16


def test_chat_goes_on_as_long_as_the_context_unless_told(server: RunningServer) -> None:
    server.post(CHAT, messages=user("hi"))

    request = server.engine.wait_for(Generate)[0]
    assert request.max_new_tokens == CONTEXT_TOKENS - len(request.tokens)


def test_newer_name_of_max_tokens_wins(server: RunningServer) -> None:
    server.post(CHAT, messages=user("hi"), max_tokens=9, max_completion_tokens=5)

    assert server.engine.wait_for(Generate)[0].max_new_tokens == 5


def test_sampling_reaches_the_engine(server: RunningServer) -> None:
    sampling = {"temperature": 0.5, "top_p": 0.9, "seed": 3, "stop_token_ids": [120], "ignore_eos": True}
    server.post(COMPLETIONS, prompt="a", max_tokens=4, lora_id="l", cache_salt="s", **sampling)

    request = server.engine.wait_for(Generate)[0]
    assert (request.temperature, request.top_p, request.seed) == (0.5, 0.9, 3)
    assert (request.stop_tokens, request.ignore_eos) == ((120,), True)
    assert (request.lora_id, request.cache_salt) == ("l", "s")


def test_requests_without_a_seed_differ(server: RunningServer) -> None:
    server.post(COMPLETIONS, prompt="a")
    server.post(COMPLETIONS, prompt="a")

    first, second = server.engine.wait_for(Generate, 2)
    assert first.seed != second.seed


def test_negative_seed_is_one_too(server: RunningServer) -> None:
    server.post(COMPLETIONS, prompt="a", seed=-5)

    assert 0 <= server.engine.wait_for(Generate)[0].seed < 1 << 63


def test_token_that_ends_the_answer_has_no_text_but_counts(server: RunningServer) -> None:
    reply = server.post(COMPLETIONS, prompt=[97, 98, EOS], max_tokens=9, return_token_ids=True)

    assert choices(reply) == [
        {
            "index": 0,
            "text": "ab",
            "logprobs": None,
            "finish_reason": "stop",
            "token_ids": [97, 98, EOS],
            "prompt_token_ids": [97, 98, EOS],
        }
    ]
    assert cast("dict[str, int]", reply.json()["usage"])["completion_tokens"] == 3


def test_stop_string_across_tokens_ends_the_answer_and_is_not_in_it(server: RunningServer) -> None:
    reply = server.post(COMPLETIONS, prompt="abcdef", max_tokens=50, stop=["zz", "def"])

    assert [(choice["text"], choice["finish_reason"]) for choice in choices(reply)] == [("abc", "stop")]


def test_stop_string_aborts_what_still_runs(server: RunningServer) -> None:
    server.post(COMPLETIONS, prompt="!hold", max_tokens=50, stop="!")

    assert server.engine.wait_for(Abort)[0].request_id == server.engine.wait_for(Generate)[0].request_id


def test_beginning_of_a_stop_string_at_the_end_is_text(server: RunningServer) -> None:
    reply = server.post(COMPLETIONS, prompt="abc", max_tokens=3, stop="cab")

    assert choices(reply)[0]["text"] == "abc"


def test_character_cut_by_the_length_shows_as_one_that_is_not(server: RunningServer) -> None:
    reply = server.post(COMPLETIONS, prompt="é", max_tokens=3)

    assert choices(reply)[0]["text"] == "é\ufffd"


def test_content_in_parts_is_one_text(server: RunningServer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    server.post(CHAT, messages=[{"role": "developer", "content": parts}, {"role": "assistant", "content": None}])

    assert bytes(server.engine.wait_for(Generate)[0].tokens) == b"<system>ab<assistant><assistant>"


def test_model_is_known_by_its_path_too(server: RunningServer) -> None:
    assert server.post(COMPLETIONS, model="/models/toy", prompt="a").json()["model"] == MODEL


def test_requests_of_different_bodies_never_share_an_id(server: RunningServer) -> None:
    server.post(COMPLETIONS, prompt=["a", "b"])
    server.post(COMPLETIONS, prompt=["a", "b"])

    ids = sorted(request.request_id for request in server.engine.wait_for(Generate, 4))
    assert all(one != other for one, other in pairwise(ids))


def test_model_without_a_tokenizer_takes_and_gives_tokens() -> None:
    with running(Options(tokenizer=NoTokenizer())) as server:
        reply = server.post(COMPLETIONS, prompt=[1, 2], max_tokens=3, return_token_ids=True)
        refused = server.post(COMPLETIONS, prompt="text")

    assert choices(reply)[0]["token_ids"] == [1, 2, 1]
    assert (refused.status, refused.error()["code"]) == (400, "no_tokenizer")


def test_models_are_listed(server: RunningServer) -> None:
    listed = server.call("GET", "/v1/models").json()
    card = server.call("GET", f"/v1/models/{MODEL}").json()

    assert listed == {"object": "list", "data": [card]}
    assert (card["id"], card["object"], card["max_model_len"]) == (MODEL, "model", CONTEXT_TOKENS)
