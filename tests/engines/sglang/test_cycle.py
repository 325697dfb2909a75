"""A prompt's KV through stock SGLang and this project's adapter: device, host pool, store, fresh process, and back."""

from __future__ import annotations

import argparse
import json
import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sglang.srt.environ import envs
from sglang.srt.server_args import ServerArgs

from benchmarks.peers.project import ROOT
from benchmarks.peers.sglang.controlled import Controlled
from benchmarks.subject import SubjectFailed
from benchmarks.workload import Workload
from tests.engines.sglang.stack import Model, Stack, Storage
from tests.engines.sglang.storages import DAMAGES, LAYOUTS, MLA_LAYOUTS, objects, ours, stock

MHA, MLA = Model(), Model(latent=72)
PAGES = 8


@contextmanager
def running(model: Model, storage: Storage) -> Iterator[Stack]:
    stack = Stack(model, storage)
    try:
        yield stack
    finally:
        stack.close()


def fill(model: Model, storage: Storage, start: int = 1) -> list[str]:
    """Compute a prompt and store it; return its page hashes."""
    with running(model, storage) as writer:
        tokens = writer.tokens(PAGES, start)
        return writer.back_up(writer.compute(tokens, model.kv(len(tokens))))


def fetched(model: Model, storage: Storage) -> tuple[int, bool]:
    """Return how many pages of the prompt a fresh process gets, and whether every byte of them is right."""
    with running(model, storage) as reader:
        tokens = reader.tokens(PAGES)
        loaded = reader.prefetch(tokens)
        is_right = not loaded or reader.holds(tokens[:loaded], model.kv(len(tokens))[:, :, :loaded])
        return loaded // model.page_tokens, is_right


@pytest.mark.parametrize("layout", LAYOUTS)
def test_mha_comes_back_to_the_byte(tmp_path: Path, layout: str) -> None:
    fill(MHA, ours(tmp_path, layout))

    assert fetched(MHA, ours(tmp_path, layout)) == (PAGES, True)


@pytest.mark.parametrize("layout", MLA_LAYOUTS)
def test_mla_comes_back_to_the_byte(tmp_path: Path, layout: str) -> None:
    fill(MLA, ours(tmp_path, layout))

    assert fetched(MLA, ours(tmp_path, layout)) == (PAGES, True)


@pytest.mark.parametrize(("writer", "reader"), zip(LAYOUTS, (*LAYOUTS[1:], LAYOUTS[0]), strict=True))
def test_a_host_layout_reads_what_another_wrote(tmp_path: Path, writer: str, reader: str) -> None:
    fill(MHA, ours(tmp_path, writer))

    assert fetched(MHA, ours(tmp_path, reader)) == (PAGES, True)


def test_the_copying_interface_reads_what_the_zero_copy_one_wrote(tmp_path: Path) -> None:
    fill(MHA, ours(tmp_path))

    assert fetched(MHA, ours(tmp_path, options={"interface_v1": 0})) == (PAGES, True)


def test_the_zero_copy_interface_reads_what_the_copying_one_wrote(tmp_path: Path) -> None:
    fill(MHA, ours(tmp_path, options={"interface_v1": 0}))

    assert fetched(MHA, ours(tmp_path)) == (PAGES, True)


def test_pages_are_stored_and_found_when_sglang_names_their_prefix(tmp_path: Path) -> None:
    storage = ours(tmp_path, options={"hicache_storage_pass_prefix_keys": True})
    fill(MHA, storage)

    assert fetched(MHA, storage) == (PAGES, True)


def test_a_page_has_one_object_for_each_part_of_the_grid(tmp_path: Path) -> None:
    grid = {"layer_partition": 2, "head_partition": 1}
    hashes = fill(MHA, ours(tmp_path, options=grid))

    assert [len(objects(tmp_path, page_hash)) for page_hash in hashes] == [2 * 4] * PAGES
    assert fetched(MHA, ours(tmp_path, options=grid)) == (PAGES, True)


def test_a_longer_prompt_gets_the_prefix_that_is_stored(tmp_path: Path) -> None:
    fill(MHA, ours(tmp_path))

    with running(MHA, ours(tmp_path)) as reader:
        assert reader.prefetch(reader.tokens(PAGES + 4)) == PAGES * MHA.page_tokens


def test_another_prompt_gets_nothing(tmp_path: Path) -> None:
    fill(MHA, ours(tmp_path), start=5000)

    assert fetched(MHA, ours(tmp_path)) == (0, True)


def test_sglang_takes_the_command_line_of_the_gpu_example_to_this_adapter(tmp_path: Path) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "sglang_gpu" / "check.py"))
    options = example["parser"]().parse_args(["--model", "some/model", "--store", f"file://{tmp_path}"])
    command = example["server_command"](options, 1, store=options.store)
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)

    args = parser.parse_args(command[command.index("--model-path") :])

    assert args.hicache_storage_backend == "dynamic"
    given = Storage(backend=args.hicache_storage_backend, extra=json.loads(args.hicache_storage_backend_extra_config))
    fill(MHA, replace(given, layout=args.hicache_mem_layout))
    assert objects(tmp_path)
    assert fetched(MHA, replace(given, layout=args.hicache_mem_layout)) == (PAGES, True)


@pytest.mark.parametrize("layout", ["page_first_direct", "page_first"])
@pytest.mark.parametrize("heads", [2, 0], ids=["MHA", "MLA"])
@pytest.mark.parametrize("backend", ["file", "bare", "ours"])
def test_a_subject_of_the_benchmark_reads_what_it_wrote(tmp_path: Path, backend: str, heads: int, layout: str) -> None:
    subject = Controlled(backend)
    subject.prepare(
        Workload(
            folder=str(tmp_path),
            objects=3,
            num_layers=2,
            kv_heads=heads,
            head_dim=72,
            page_tokens=16,
            host_layout=layout,
        )
    )
    subject.write()
    subject.clear_memory()
    assert subject.wrong_objects() == 3

    subject.read()

    assert subject.wrong_objects() == 0
    subject.wipe()
    with pytest.raises(SubjectFailed):
        subject.read()
    subject.release()


# -- attached to a running server ------------------------------------------------------------


def test_a_store_that_is_attached_later_takes_what_was_computed_before(tmp_path: Path) -> None:
    kv = MHA.kv(PAGES * MHA.page_tokens)
    with running(MHA, replace(ours(tmp_path), backend=None)) as server:
        leaf = server.compute(server.tokens(PAGES), kv)
        done, message = server.attach(ours(tmp_path))
        assert done, message
        server.back_up(leaf)

    assert fetched(MHA, ours(tmp_path)) == (PAGES, True)


def test_a_detached_store_can_be_attached_again(tmp_path: Path) -> None:
    fill(MHA, ours(tmp_path))
    tokens = list(range(1, 1 + PAGES * MHA.page_tokens))
    with running(MHA, ours(tmp_path)) as server:
        done, message = server.detach()
        assert done, message
        assert not server.controller.enable_storage
        done, message = server.attach(ours(tmp_path))
        assert done, message

        assert server.restores(tokens, MHA.kv(len(tokens)))
        assert server.threads_are_alive()


@pytest.mark.parametrize(
    ("option", "value"), [("layer_partitoin", 2), ("layer_partition", 0), ("backend", "no_such_store")]
)
def test_a_wrong_option_is_refused_by_name_and_the_server_goes_on(tmp_path: Path, option: str, value: object) -> None:
    fill(MHA, ours(tmp_path))
    tokens = list(range(1, 1 + PAGES * MHA.page_tokens))
    with running(MHA, replace(ours(tmp_path), backend=None)) as server:
        done, message = server.attach(ours(tmp_path, options={option: value}))
        assert not done
        assert option in message
        assert server.attach(ours(tmp_path))[0]

        assert server.restores(tokens, MHA.kv(len(tokens)))


# -- trouble ---------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_object_ends_the_prefix_and_heals(tmp_path: Path, damage: str) -> None:
    hashes = fill(MHA, ours(tmp_path))
    DAMAGES[damage](*(objects(tmp_path, hashes[page])[0] for page in (3, 5)))

    assert fetched(MHA, ours(tmp_path)) == (3, True)
    fill(MHA, ours(tmp_path))
    assert fetched(MHA, ours(tmp_path)) == (PAGES, True)


@pytest.mark.parametrize(
    ("damage", "outcome"),
    [
        ("bit flip", (PAGES, False)),
        ("truncated", (0, True)),
        ("too long", (PAGES, True)),
        ("second half zero", (PAGES, False)),
        ("another page's object", (PAGES, False)),
    ],
)
def test_what_stock_sglang_does_with_a_damaged_object(tmp_path: Path, damage: str, outcome: tuple[int, bool]) -> None:
    """The other column of the table in docs/engines.md: pages that come, and whether their bytes are right."""
    hashes = fill(MHA, stock(tmp_path))
    DAMAGES[damage](*(objects(tmp_path, hashes[page])[0] for page in (3, 5)))

    assert fetched(MHA, stock(tmp_path)) == outcome


def test_random_delays_and_failures_give_no_wrong_byte_and_end_no_thread(tmp_path: Path) -> None:
    delay, failure = envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY, envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE
    outcomes = []
    with delay.override(0.005), failure.override(0.3), running(MHA, ours(tmp_path)) as server:
        for turn in range(12):
            tokens = server.tokens(2, start=10_000 * (turn + 1))
            server.back_up(server.compute(tokens, MHA.kv(len(tokens), seed=turn)))
        with running(MHA, ours(tmp_path)) as reader:
            for turn in range(12):
                tokens = reader.tokens(2, start=10_000 * (turn + 1))
                kv = MHA.kv(len(tokens), seed=turn)
                loaded = reader.prefetch(tokens, f"request {turn}")
                outcomes.append(loaded)
                assert not loaded or reader.holds(tokens[:loaded], kv[:, :, :loaded])
            assert reader.threads_are_alive()
        assert server.threads_are_alive()

    assert any(outcomes)
    assert not all(outcomes)


def test_a_store_that_goes_away_is_a_miss_and_comes_back(tmp_path: Path) -> None:
    folder, away = tmp_path / "store", tmp_path / "away"
    fill(MHA, ours(folder))
    tokens = list(range(1, 1 + PAGES * MHA.page_tokens))
    with running(MHA, ours(folder)) as server:
        folder.rename(away)
        assert server.prefetch(tokens, "while it is away") == 0
        away.rename(folder)

        assert server.restores(tokens, MHA.kv(len(tokens)))
        assert server.threads_are_alive()
