"""What is stored is a prefix at every moment, and a new server finds all of it (F13); also after a kill (kill -9)."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from hicache_storage.engine_integration.controller import CachedTokens
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.layout import page_hashes
from hicache_storage.registry import open_store
from hicache_storage.store import ObjectStore
from hicache_storage.testing.faults import Fault, FaultyStore, Gate
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.controller.engine import PAGE_TOKENS, Engine, prompt
from tests.engine_integration.controller.flaky import FlakyStore

PROMPT = prompt(*range(128), extra=1)
HASHES = page_hashes(PROMPT, PAGE_TOKENS)
ROOT = Path(__file__).parents[3]


def options(**changes: object) -> TierOptions:
    return TierOptions(
        prefetch_threshold_tokens=4,
        load_back_threshold_tokens=0,
        prefetch_host_fraction=1.0,
        **changes,  # type: ignore[arg-type]
    )


def stored_pages(store: ObjectStore) -> list[int]:
    """Return which pages of the prompt *store* holds, in order."""
    held = {info.key[:64] for info in store.list_keys()}
    return [number for number, page_hash in enumerate(HASHES) if page_hash in held]


def served(store: ObjectStore) -> CachedTokens:
    """Return what a new server with room for everything finds, every byte judged."""
    engine = Engine(device_pages=160, host_pages=160, store=store, options=options(prefetch_policy="wait_complete"))
    cached = engine.generate(PROMPT).cached
    engine.close()
    return cached


def run_dry(engine: Engine) -> None:
    """Push the prompt out of device and host with another one, and let everything end."""
    engine.generate(prompt(*range(1000, 1128), extra=1))
    engine.controller.settle()


@pytest.mark.parametrize("chunk", [None, 16 * PAGE_TOKENS])
@pytest.mark.parametrize("write", ["write_through", "write_back"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_prompt_far_longer_than_the_host_is_stored_as_a_growing_prefix(
    write: str, chunk: int | None, at_once: bool
) -> None:
    store = FlakyStore(MemoryStore())
    seen: list[list[int]] = []
    store.on_write = lambda _: seen.append(stored_pages(store))
    engine = Engine(device_pages=132, host_pages=16, store=store, options=options(write_policy=write), at_once=at_once)

    engine.generate(PROMPT, chunk=chunk)
    run_dry(engine)
    engine.close()

    assert all(pages == list(range(len(pages))) for pages in seen)
    assert len(seen[-1]) == 128
    assert served(store) == CachedTokens(store=128 * PAGE_TOKENS)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_stored_is_a_prefix_again_after_every_write_that_failed(seed: int) -> None:
    failing = random.Random(seed).sample(range(1, 160), 16)
    store = FaultyStore(MemoryStore(), [Fault("write", "raise", nth=nth) for nth in failing])
    engine = Engine(device_pages=132, host_pages=24, store=store, options=options(store_batch_pages=4))
    engine.generate(PROMPT, chunk=16 * PAGE_TOKENS)

    for _ in range(100):
        engine.controller.step()
        engine.controller.settle()
        pages = stored_pages(store.inner)
        assert pages == list(range(len(pages)))
    assert engine.counters["pages_not_written_back"] > 0
    engine.close()


def test_a_write_behind_one_that_failed_is_not_begun() -> None:
    gate = Gate()
    store = FaultyStore(MemoryStore(), [Fault("write", "delay", nth=1, gate=gate), Fault("write", "raise", nth=2)])
    engine = Engine(device_pages=132, host_pages=160, store=store, options=options(prefetch_policy="best_effort"))
    engine.generate(PROMPT, chunk=16 * PAGE_TOKENS)

    gate.open()
    engine.controller.settle()

    assert stored_pages(store.inner) == []
    assert engine.counters["pages_not_written_back"] == 128
    for _ in range(65):
        engine.controller.step()
    engine.controller.settle()
    assert stored_pages(store.inner) == list(range(128))
    engine.close()


def test_another_process_finds_everything(tmp_path: Path) -> None:
    _serve(tmp_path, "all")

    with open_store("file", {"path": str(tmp_path / "store")}) as store:
        assert served(store) == CachedTokens(store=128 * PAGE_TOKENS)


@pytest.mark.parametrize("writes", [1, 2, 17, 60, 127])
def test_what_a_killed_server_had_written_is_right_to_the_byte(tmp_path: Path, writes: int) -> None:
    _serve(tmp_path, str(writes), killed=True)

    with open_store("file", {"path": str(tmp_path / "store")}) as store:
        found = stored_pages(store)
        # The first write is that of the namespace's description.
        assert found == list(range(writes - 1))
        assert served(store) == CachedTokens(store=len(found) * PAGE_TOKENS)
        again = Engine(device_pages=160, host_pages=160, store=store, options=options())
        again.generate(PROMPT)
        again.close()
        assert served(store) == CachedTokens(store=128 * PAGE_TOKENS)


def _serve(folder: Path, writes: str, *, killed: bool = False) -> None:
    """Serve the prompt from another process over a file store, which is killed at its last write of *writes*."""
    command = [sys.executable, "-m", "tests.engine_integration.controller.victim", str(folder / "store"), writes]
    done = subprocess.run(command, cwd=ROOT, timeout=60, check=False, capture_output=True, text=True)
    assert done.returncode == (-9 if killed else 0), done.stderr
