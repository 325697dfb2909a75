"""`hicache demo` as a user runs it: real engines, a real model, a store in a folder."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

import pytest

from hicache_storage.engine_integration.reference_engine.model_folder import default_cache, find_model
from tests.cli.running import HICACHE, environment

DEADLINE_S = 300


class Turn(TypedDict):
    """One answer in the document, as far as these tests look at it."""

    document: int
    turn: int
    prompt_tokens: int
    cached_tokens: dict[str, int]
    text: str


class Reader(TypedDict):
    """One reader in the document."""

    writer: str
    reader: str
    pages_expected: int
    pages_hit: int
    objects: int
    nbytes: int
    same_text: bool
    objects_quarantined: int
    failures: dict[str, int]
    turns: list[dict[str, object]]


class Document(TypedDict):
    """What ``--json`` writes."""

    readers: list[Reader]
    turns: list[Turn]
    warm_store: bool
    objects_total: int
    objects_there: int
    objects_stored: int
    objects_quarantined: int
    one_writer_per_object: bool | None
    failures: dict[str, int]


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
        [HICACHE, "demo", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=DEADLINE_S,
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr)


def objects(store: Path) -> set[str]:
    return {path.name for path in store.rglob("*_L*") if path.is_file()}


@pytest.fixture(scope="module")
def real_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real") / "kv"


@pytest.fixture(scope="module")
def started(real_store: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo as it is by default, with the real model and an empty store."""
    command = [HICACHE, "demo", "--store", real_store.as_uri(), "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def first_run(started: subprocess.Popen[str]) -> Run:
    out, err = started.communicate(timeout=DEADLINE_S)
    return Run(started.returncode, out, err)


@pytest.mark.slow
def test_the_default_model_is_converted_whole() -> None:
    """The first test of the file: the runs behind it find the conversion done, as a user's second run does."""
    source = find_model(None, default_cache())

    source.prepare(timeout_s=DEADLINE_S)

    assert source.is_ready
    assert {path.name for path in source.folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}


@pytest.mark.slow
def test_what_goes_on_is_told_while_it_goes_on(started: subprocess.Popen[str]) -> None:
    assert started.stderr is not None
    for said in ("store was cold", "tp3pp2: starting 6 ranks", "tp3pp2: document 1, turn 2", "tp3pp2: stored"):
        while said not in started.stderr.readline():
            assert started.poll() is None


@pytest.mark.slow
def test_every_reader_restores_every_page_and_says_what_it_says_without_a_cache(first_run: Run) -> None:
    assert first_run.status == 0, first_run.stderr
    readers = first_run.document["readers"]
    assert [(one["writer"], one["reader"]) for one in readers] == [("tp3pp2", "tp1pp1"), ("tp3pp2", "tp1pp3")]
    for one in readers:
        assert one["pages_hit"] == one["pages_expected"] >= 30
        assert one["same_text"] is True
        assert [turn["same_text"] for turn in one["turns"]] == [True, True]
        assert one["failures"] == {}


@pytest.mark.slow
def test_a_turn_finds_the_one_before_it_on_the_writer_s_device_and_a_reader_all_of_them_in_the_store(
    first_run: Run,
) -> None:
    (first, second, _) = first_run.document["turns"]
    third = first_run.document["readers"][0]["turns"][0]

    assert first["cached_tokens"] == {"device": 0, "host": 0, "store": 0}
    assert second["cached_tokens"]["device"] >= first["prompt_tokens"] // 16 * 16
    assert (second["cached_tokens"]["host"], second["cached_tokens"]["store"]) == (0, 0)
    pages = first_run.document["readers"][0]["pages_expected"]
    other = cast("dict[str, int]", first_run.document["readers"][0]["turns"][1]["cached_tokens"])
    assert third["cached_tokens"] == {"device": 0, "host": 0, "store": 16 * pages - other["store"]}


@pytest.mark.slow
def test_every_object_is_stored_by_exactly_one_of_the_writer_s_ranks(first_run: Run, real_store: Path) -> None:
    document = first_run.document

    assert document["warm_store"] is False
    assert document["one_writer_per_object"] is True
    assert document["objects_stored"] == document["objects_there"] == document["objects_total"]
    assert len(objects(real_store)) == document["objects_total"]


@pytest.mark.slow
def test_each_reader_counts_the_objects_it_reads_parts_of(first_run: Run) -> None:
    """Chunks are 15 layers x 1 head: TP1/PP1 reads 6 a page; the middle one of 3 stages reads both layer ranges."""
    whole, thirds = first_run.document["readers"]

    assert whole["objects"] == 6 * whole["pages_hit"] == first_run.document["objects_total"]
    assert thirds["objects"] == 12 * thirds["pages_hit"]
    assert whole["nbytes"] > whole["pages_hit"] * 30 * 2 * 16 * 3 * 64 * 4


@pytest.mark.slow
def test_the_model_answers_from_the_documents(first_run: Run) -> None:
    for reader in first_run.document["readers"]:
        power, museum = (str(turn["text"]) for turn in reader["turns"])
        assert "feed Red and feed Blue" in power
        assert "forty ropes" in museum


@pytest.mark.slow
def test_a_second_run_finds_the_store_warm_and_stores_nothing(first_run: Run, real_store: Path) -> None:
    before = objects(real_store)

    second = demo("--store", real_store.as_uri(), "--readers", "tp1pp1", "--json")

    assert second.status == 0, second.stderr
    assert second.document["warm_store"] is True
    assert second.document["objects_stored"] == 0
    assert second.document["turns"][0]["cached_tokens"]["store"] > 200
    assert second.document["readers"][0]["turns"][0]["text"] == first_run.document["readers"][0]["turns"][0]["text"]
    assert objects(real_store) == before
