"""What `hicache demo` makes of its documents, its options and its store; the ranks are threads of the test."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from hicache_storage.cli.demo import running
from hicache_storage.cli.demo.conversation import converse, load_tokenizer
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.engine_integration.reference_engine.random_model import RandomShape, write_random_model
from hicache_storage.layout import page_hashes
from tests.cli.running import Ended, Hicache
from tests.engine_integration.reference_engine.thread_ranks import ThreadEngine

WORDS = [f"w{index}" for index in range(200)]
PAGE_TOKENS = 8


class InThreads(ThreadEngine):
    """An engine as the demo starts it."""

    pid = os.getpid()

    def __init__(self, config: EngineConfig, *, start_timeout_s: float) -> None:
        super().__init__(config)

    def close(self, timeout_s: float = 0.0) -> None:
        super().close()


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "EngineClient", InThreads)


def objects(store: Path) -> set[str]:
    return {path.name for path in store.rglob("*_L*") if path.is_file()}


def damage(store: Path, page_hash: str) -> None:
    """Flip a bit in the only object of a page."""
    (file,) = (path for path in store.rglob(f"{page_hash}*") if path.is_file())
    body = bytearray(file.read_bytes())
    body[100] ^= 0x10
    file.write_bytes(body)


def row(ended: Ended, engine: str) -> dict[str, str]:
    """Return the first row of *engine* in the table, by header."""
    header, *rows = (re.split(r"\s{2,}", line.strip()) for line in ended.out.split("\n\n")[0].splitlines())
    return dict(zip(header, next(cells for cells in rows if cells[0] == engine), strict=True))


def turns(ended: Ended) -> list[dict[str, int]]:
    """Return the writer's turns in the document."""
    listed: list[dict[str, int]] = json.loads(ended.out)["turns"]
    return listed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose 2 KV heads are replicated over 4 TP ranks, with a tokenizer of 200 words."""
    folder = tmp_path_factory.mktemp("tiny")
    write_random_model(folder, RandomShape(num_kv_heads=2, vocab_size=len(WORDS)), seed=5)
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_prompt(path: Path, document: int, *questions: int, mark: str = "Question: ") -> Path:
    """Write a document of so many tokens, and questions of so many, each behind a word that marks it."""
    words = iter(WORDS[(13 * index) % len(WORDS)] for index in range(document + sum(questions)))
    paragraphs = [" ".join(next(words) for _ in range(document))]
    paragraphs += [mark + " ".join(next(words) for _ in range(question)) for question in questions]
    path.write_text("\n\n".join(paragraphs))
    return path


@pytest.fixture
def flags(model: Path, tmp_path: Path) -> list[str]:
    """A store in `tmp_path / "kv"`, and the model."""
    store = (tmp_path / "kv").as_uri()
    return ["demo", "--model", str(model), "--store", store, "--page-size", str(PAGE_TOKENS)]


def prompts(*paths: Path) -> list[str]:
    return ["--prompt-file", *map(str, paths)]


# -- what is shown -----------------------------------------------------------------------------


def test_the_table_names_every_turn_and_where_the_store_is(hicache: Hicache, flags: list[str], tmp_path: Path) -> None:
    prompt = write_prompt(tmp_path / "prompt.txt", 45, 3, 2)

    ended = hicache(*flags, *prompts(prompt), "--writer", "tp4pp2", "--readers", "tp2pp1", "--max-new-tokens", "5")

    assert ended.status == 0, ended.err
    assert row(ended, "tp4pp2").items() >= {
        ("document", "1"), ("turn", "1"), ("prompt", "49"), ("store", "0"), ("same text", "-"),
    }  # fmt: skip
    assert row(ended, "tp2pp1").items() >= {
        ("turn", "2"), ("prompt", "57"), ("device", "0"), ("store", "48"), ("same text", "yes"),
    }  # fmt: skip
    assert f"store: file (path={tmp_path / 'kv'})" in ended.out


def test_of_ranks_that_hold_the_same_heads_one_stores_them(hicache: Hicache, flags: list[str], tmp_path: Path) -> None:
    """2 KV heads over 4 TP ranks on each of 2 stages: 8 ranks, 4 objects a page."""
    prompt = write_prompt(tmp_path / "prompt.txt", 45, 3)

    ended = hicache(*flags, *prompts(prompt), "--writer", "tp4pp2", "--readers", "tp1pp1", "--max-new-tokens", "5")

    assert "stored 24 objects" in ended.out
    assert "the store has 24 of 24, each stored by exactly one of 8 ranks." in ended.out
    assert len(objects(tmp_path / "kv")) == 24


def test_documents_are_conversations_of_their_own(hicache: Hicache, flags: list[str], tmp_path: Path) -> None:
    paths = write_prompt(tmp_path / "a.txt", 45, 3, 2, 4), write_prompt(tmp_path / "b.txt", 20, 3, mark="")

    ended = hicache(*flags, *prompts(*paths), "--writer", "tp1pp2", "--readers", "tp2pp1", "--max-new-tokens", "4",
                    "--json")  # fmt: skip

    assert ended.status == 0, ended.err
    asked = [(turn["document"], turn["turn"], turn["prompt_tokens"]) for turn in turns(ended)]
    assert asked == [(1, 1, 49), (1, 2, 56), (2, 1, 23)]
    (reader,) = json.loads(ended.out)["readers"]
    assert [(turn["document"], turn["turn"]) for turn in reader["turns"]] == [(1, 3), (2, 1)]


# -- damage and refusal ------------------------------------------------------------------------


def test_a_damaged_object_that_the_writer_meets_is_said_plainly_and_healed_at_once(
    hicache: Hicache, flags: list[str], model: Path, tmp_path: Path
) -> None:
    prompt = write_prompt(tmp_path / "prompt.txt", 45, 3)
    command = [*flags, *prompts(prompt), "--writer", "tp1pp1", "--readers", "tp2pp1", "--max-new-tokens", "5"]
    assert hicache(*command).status == 0
    opening = converse(prompt.read_text(), load_tokenizer(model)).opening
    damage(tmp_path / "kv", page_hashes(opening, PAGE_TOKENS)[2])

    damaged, healed = hicache(*command), hicache(*command, "--json").json()

    assert damaged.status == 4
    assert "tp1pp1 met 1 damaged object (CorruptObject); it computed and stored the pages anew." in damaged.out
    assert "tp2pp1 restored 6/6 pages" in damaged.out
    assert (healed["objects_stored"], healed["objects_quarantined"]) == (0, 0)


def test_a_damaged_object_that_a_reader_meets_is_said_plainly_and_heals_on_the_next_run(
    hicache: Hicache, flags: list[str], model: Path, tmp_path: Path
) -> None:
    prompt = write_prompt(tmp_path / "prompt.txt", 44, 3, 2)
    command = [*flags, *prompts(prompt), "--writer", "tp1pp1", "--readers", "tp1pp1,tp2pp1", "--max-new-tokens", "12"]
    assert hicache(*command).status == 0
    of_prompt = page_hashes(converse(prompt.read_text(), load_tokenizer(model)).opening, PAGE_TOKENS)
    (of_answer,) = {name[:64] for name in objects(tmp_path / "kv")} - set(of_prompt)
    damage(tmp_path / "kv", of_answer)

    damaged, healed = hicache(*command), hicache(*command, "--json")

    assert damaged.status == 4
    lines = damaged.out.splitlines()
    assert "tp1pp1, document 1: recomputed from page 6 on: it met 1 damaged object (CorruptObject)" in lines
    assert "tp2pp1, document 1: recomputed from page 6 on: an object of that page is not in the store" in lines
    assert "What was damaged is out of use (quarantined); the next run computes and writes it anew." in lines
    assert (healed.status, healed.json()["objects_stored"], healed.json()["objects_quarantined"]) == (0, 1, 0)


def test_what_the_store_refuses_is_said_and_is_no_success(hicache: Hicache, model: Path, tmp_path: Path) -> None:
    prompt = write_prompt(tmp_path / "prompt.txt", 45, 3)
    options = json.dumps({"path": str(tmp_path / "kv"), "script": "write:raise"})

    ended = hicache("demo", "--model", str(model), *prompts(prompt), "--store", "tests.cli.stores:ScriptedStore",
                    "--hicache-storage-backend-extra-config", options, "--writer", "tp1pp1", "--readers", "tp1pp1",
                    "--max-new-tokens", "4")  # fmt: skip

    assert ended.status == 3, ended.err
    assert re.search(r"tp1pp1 was failed by the store: write_failed\.StoreUnavailable \d+x", ended.out)
    assert "tp1pp1 restored 0/3 pages" in ended.out


# -- what is asked for -------------------------------------------------------------------------


def test_a_prompt_of_nothing_but_full_pages_leaves_a_page_to_compute(
    hicache: Hicache, flags: list[str], tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text(" ".join(WORDS[:24]))

    ended = hicache(*flags, *prompts(tmp_path / "prompt.txt"), "--writer", "tp1pp1", "--readers", "tp1pp1", "--json")

    assert turns(ended)[0]["prompt_tokens"] == 24
    (reader,) = json.loads(ended.out)["readers"]
    assert reader["pages_expected"] == reader["pages_hit"] == 2


def test_cold_shares_nothing_with_earlier_runs_and_leaves_nothing_behind(
    hicache: Hicache, flags: list[str], tmp_path: Path
) -> None:
    prompt = write_prompt(tmp_path / "prompt.txt", 45, 3)
    command = [*flags, *prompts(prompt), "--writer", "tp1pp1", "--readers", "tp1pp1", "--max-new-tokens", "4"]
    hicache(*command)
    before = objects(tmp_path / "kv")

    warm, cold = hicache(*command, "--json").json(), hicache(*command, "--cold", "--json").json()

    assert (warm["warm_store"], warm["objects_stored"]) == (True, 0)
    assert (cold["warm_store"], cold["objects_stored"]) == (False, len(before))
    assert objects(tmp_path / "kv") == before


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (["--writer", "tp3pp1"], "2 KV heads over 3 TP ranks"),
        (["--readers", "tp1pp1,tp1pp9"], "9 stages, the model has 4 layers"),
        (["--readers", "four"], "topology 'four'"),
        (["--page-size", "64"], "48 tokens, which is no full page of 64"),
        (["--max-new-tokens", "4000"], "the model takes 2048"),
        (["--max-new-tokens", "x"], "'x' is no whole number of at least 1"),
        (["--timeout", "0"], "'0' is no whole number of at least 1"),
        (["--store", "memory"], "memory"),
        (["--model", "/nonexistent/model"], "does not exist"),
    ],
)
def test_what_cannot_work_is_refused_with_both_numbers(
    hicache: Hicache, flags: list[str], tmp_path: Path, wrong: list[str], reason: str
) -> None:
    prompt = write_prompt(tmp_path / "prompt.txt", 45, 3, mark="")

    ended = hicache(*flags, *prompts(prompt), "--writer", "tp2pp1", *wrong)

    assert ended.status == 2
    assert reason in ended.err
    assert ended.out == ""
