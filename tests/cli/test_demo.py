"""`hicache demo` as a user runs it: real processes, a real model, a store in a folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from hicache_storage.engine_integration.reference_engine.model_folder import default_cache, find_model
from hicache_storage.engine_integration.reference_engine.random_model import RandomShape, write_random_model

READER_FIELDS = {
    "writer",
    "reader",
    "pages_hit",
    "objects",
    "nbytes",
    "restore_gb_s",
    "ttft_cold_s",
    "ttft_warm_s",
    "same_text",
}
WORDS = [f"w{index}" for index in range(200)]
DEADLINE_S = 300


class Reader(TypedDict):
    """One reader in the document, as far as these tests look at it."""

    writer: str
    reader: str
    pages_hit: int
    objects: int
    nbytes: int
    restore_gb_s: float
    ttft_cold_s: float
    ttft_warm_s: float
    same_text: bool
    failure: NotRequired[str]
    objects_quarantined: NotRequired[int]


class Document(TypedDict):
    """What ``--json`` writes, as far as these tests look at it."""

    readers: list[Reader]
    warm_store: bool
    objects_total: int
    objects_stored: int
    objects_quarantined: int
    pages: int
    prompt_tokens: int
    text: str


@dataclass(frozen=True)
class Run:
    status: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Document:
        return cast("Document", json.loads(self.stdout))


def demo(*arguments: object) -> Run:
    done = subprocess.run(
        [sys.executable, "-m", "hicache_storage.cli.main", "demo", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr)


def damage(store: Path, page_hash_start: str, *, flip_at: int) -> int:
    """Flip one byte in each object of a page; return how many objects there were."""
    files = [path for path in store.rglob(f"*{page_hash_start}*") if path.is_file()]
    for path in files:
        body = bytearray(path.read_bytes())
        body[flip_at] ^= 0x10
        path.write_bytes(body)
    return len(files)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose 2 KV heads are replicated over 4 TP ranks, with a tokenizer of 200 words."""
    folder = tmp_path_factory.mktemp("tiny")
    write_random_model(folder, RandomShape(num_kv_heads=2, vocab_size=len(WORDS)), seed=5)
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_prompt(path: Path, document: int, question: int) -> Path:
    """A prompt of so many tokens of document and of question."""
    words = [WORDS[(13 * index) % len(WORDS)] for index in range(document + question)]
    path.write_text(" ".join(words[:document]) + "\n\n" + " ".join(words[document:]))
    return path


@pytest.fixture(scope="module")
def real_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real") / "kv"


@pytest.fixture(scope="module")
def first_run(real_store: Path) -> Run:
    """The demo as it is by default, with the real model and an empty store."""
    return demo("--store", real_store.as_uri(), "--json")


@pytest.mark.slow
def test_the_default_model_is_converted_whole() -> None:
    """The first test of the file: the runs behind it find the conversion done, as a user's second run does."""
    source = find_model(None, default_cache())

    source.prepare(timeout_s=DEADLINE_S)

    assert source.is_ready
    assert {path.name for path in source.folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}


@pytest.mark.slow
def test_the_default_demo_restores_every_page_and_the_text_is_the_same(first_run: Run) -> None:
    assert first_run.status == 0, first_run.stderr
    readers = first_run.document["readers"]
    assert [(one["writer"], one["reader"]) for one in readers] == [("tp3pp2", "tp1pp1"), ("tp3pp2", "tp1pp3")]
    for one in readers:
        assert set(one) == READER_FIELDS
        assert one["same_text"] is True
        assert one["pages_hit"] == first_run.document["pages"] >= 40
        assert one["nbytes"] == one["pages_hit"] * 30 * 2 * 16 * 3 * 64 * 4
        assert one["restore_gb_s"] > 0
        assert one["ttft_cold_s"] > 0
        assert one["ttft_warm_s"] > 0


@pytest.mark.slow
def test_each_reader_counts_the_objects_it_reads_parts_of(first_run: Run) -> None:
    """Chunks are 15 layers x 1 head: TP1/PP1 reads 6 a page; the middle one of 3 stages reads both layer ranges."""
    document = first_run.document

    assert document["objects_total"] == document["pages"] * 6
    assert [one["objects"] for one in document["readers"]] == [document["pages"] * 6, document["pages"] * 12]


@pytest.mark.slow
def test_the_model_answers_from_the_document(first_run: Run) -> None:
    assert "power supplies" in first_run.document["text"]


@pytest.mark.slow
def test_a_first_run_says_that_it_filled_the_store(first_run: Run) -> None:
    document = first_run.document

    assert document["warm_store"] is False
    assert document["objects_stored"] == document["objects_total"]
    assert "store was cold" in first_run.stderr
    assert "6 ranks of tp3pp2" in first_run.stderr


@pytest.mark.slow
def test_a_second_run_finds_the_store_warm_and_survives_a_damaged_object(first_run: Run, real_store: Path) -> None:
    key = next(path.name for path in real_store.rglob("*_L0-15_H0*") if path.is_file())
    victim = re.search(r"[0-9a-f]{64}", key)
    assert victim is not None
    assert damage(real_store, victim[0], flip_at=100) == 6

    second = demo("--store", real_store.as_uri(), "--readers", "tp1pp1", "--json")

    assert "store was warm" in second.stderr
    assert second.document["warm_store"] is True
    reader = second.document["readers"][0]
    assert reader["pages_hit"] < first_run.document["pages"]
    assert reader["same_text"] is True
    assert "CorruptObject" in reader["failure"]
    assert second.document["text"] == first_run.document["text"]
    assert second.status == 4
    # The client gives up a page at its first damaged object or takes out all six of it.
    assert 1 <= second.document["objects_quarantined"] == reader["objects_quarantined"] <= 6
    assert re.search(r"read tp1pp1: took \d damaged objects? out of use", second.stderr)


def test_the_table_names_what_was_read_and_where_the_store_is(tiny_model: Path, tmp_path: Path) -> None:
    prompt = write_prompt(tmp_path / "prompt.txt", 45, 3)
    store = tmp_path / "kv"

    run = demo("--model", tiny_model, "--prompt-file", prompt, "--store", store.as_uri(), "--writer", "tp4pp2",
               "--readers", "tp2pp1", "--page-size", 8, "--max-new-tokens", 5)  # fmt: skip

    assert run.status == 0, run.stderr
    header, row = (re.split(r"\s{2,}", line) for line in run.stdout.splitlines()[:2])
    assert dict(zip(header, row, strict=True)).items() >= {
        ("reader", "tp2pp1"), ("writer", "tp4pp2"), ("pages hit", "5/5"), ("same text", "yes"),
    }  # fmt: skip
    assert str(store) in run.stdout
    # 2 KV heads over 4 TP ranks: one rank of each pair is elected, on each of 2 stages.
    assert "4 ranks of tp4pp2" in run.stderr


def test_a_damaged_object_is_said_plainly_and_heals_on_the_next_run(tiny_model: Path, tmp_path: Path) -> None:
    prompt = write_prompt(tmp_path / "prompt.txt", 45, 3)
    arguments = ["--model", tiny_model, "--prompt-file", prompt, "--store", (tmp_path / "kv").as_uri(), "--writer",
                 "tp1pp1", "--readers", "tp1pp1,tp2pp1", "--page-size", 8, "--max-new-tokens", 5]  # fmt: skip
    assert demo(*arguments).status == 0
    (victim,) = [path for path in (tmp_path / "kv").rglob("*_L0-4_H0") if path.is_file()][:1]
    assert damage(tmp_path / "kv", victim.name, flip_at=100) == 1

    damaged, healed = demo(*arguments), demo(*arguments, "--json")

    assert damaged.status == 4
    lines = damaged.stdout.splitlines()
    assert any(
        re.match(r"tp1pp1 recomputed from page \d on: it met 1 damaged object \(CorruptObject", s) for s in lines
    )
    assert any(
        re.match(r"tp2pp1 recomputed from page \d on: an object of that page is no longer in the store", s)
        for s in lines
    )
    assert lines[-1] == "What was damaged is out of use (quarantined); the next run computes and writes it anew."
    assert (healed.status, healed.document["objects_stored"], healed.document["objects_quarantined"]) == (0, 1, 0)


@pytest.fixture(scope="module")
def full_pages(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Arguments for a prompt of 3 full pages and nothing behind them."""
    folder = tmp_path_factory.mktemp("full")
    prompt = folder / "prompt.txt"
    prompt.write_text(" ".join(WORDS[:48]))
    return ["--model", tiny_model, "--prompt-file", prompt, "--store", (folder / "kv").as_uri(), "--writer", "tp1pp1",
            "--readers", "tp1pp1", "--max-new-tokens", 4, "--json"]  # fmt: skip


def test_a_prompt_of_nothing_but_full_pages_leaves_a_page_to_compute(full_pages: list[object]) -> None:
    run = demo(*full_pages)

    assert run.status == 0, run.stderr
    assert run.document["prompt_tokens"] == 48
    assert run.document["pages"] == run.document["readers"][0]["pages_hit"] == 2


def test_cold_starts_without_what_the_store_held_of_this_prompt(full_pages: list[object]) -> None:
    run = demo(*full_pages, "--cold")

    assert run.document["warm_store"] is False
    assert run.document["objects_stored"] == 2


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--writer", "tp3pp1"], "2 KV heads over 3 TP ranks"),
        (["--readers", "tp1pp1,tp1pp9"], "9 stages, the model has 4 layers"),
        (["--readers", "four"], "topology 'four'"),
        (["--page-size", "64"], "45 tokens, which is no full page of 64"),
        (["--max-new-tokens", "4000"], "the model takes 2048"),
        (["--store", "memory"], "memory"),
        (["--model", "/nonexistent/model"], "does not exist"),
    ],
)
def test_what_cannot_work_is_refused_with_both_numbers(
    tiny_model: Path, tmp_path: Path, flags: list[str], reason: str
) -> None:
    prompt = write_prompt(tmp_path / "prompt.txt", 45, 3)

    run = demo("--model", tiny_model, "--prompt-file", prompt, "--store", (tmp_path / "kv").as_uri(), "--writer",
               "tp2pp1", *flags)  # fmt: skip

    assert run.status == 2
    assert reason in run.stderr
    assert run.stdout == ""
