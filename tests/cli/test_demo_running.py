"""An engine of the demo answers, or ends with the cause, and leaves nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest

from hicache_storage.cli.demo.running import Engine, running
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.reference_engine.client import EngineClient
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig, StoreTarget
from hicache_storage.engine_integration.reference_engine.random_shape import RandomShape
from hicache_storage.errors import ConfigError, LayoutError, RankFailure

PROMPT = range(40)
DEADLINE_S = 120.0
SMALL = EngineConfig(
    model_id="small",
    random=RandomShape(),
    threads=1,
    page_tokens=8,
    device_pages=256,
    tiers=TierOptions(prefetch_threshold_tokens=8, prefetch_policy="wait_complete", load_back_threshold_tokens=0),
)


@pytest.fixture(autouse=True)
def _scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_what_is_settled_is_in_the_store_for_the_next_engine(tmp_path: Path) -> None:
    config = msgspec.structs.replace(SMALL, store=StoreTarget(backend=f"file://{tmp_path / 'kv'}"))

    with running(config, DEADLINE_S) as engine:
        said = engine.ask(PROMPT, 4)
        engine.settle()
        counters = engine.counters()
    with running(config, DEADLINE_S) as engine:
        again = engine.ask(PROMPT, 4)

    assert said.cached.total == 0
    assert counters["pages_stored"] == len(PROMPT) // 8
    assert again.cached.store == 32
    assert again.tokens == said.tokens


def test_a_new_salt_finds_nothing() -> None:
    with running(SMALL, DEADLINE_S) as engine:
        engine.ask(PROMPT, 2)

        assert [engine.ask(PROMPT, 2, salt=salt).cached.total for salt in ("a", "b", None)] == [0, 0, 32]


def test_an_answer_that_takes_too_long_ends_the_engine() -> None:
    with EngineClient(SMALL) as client, pytest.raises(RankFailure, match=r"tp1pp1: no answer within 0\.05 s"):
        Engine(client, 0.05).ask(PROMPT, 1900)


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    with running(SMALL, DEADLINE_S) as engine, pytest.raises(ConfigError, match=r"tp1pp1 cannot answer: .* 256"):
        engine.ask(range(200), 2040)


def test_whoever_raises_leaves_no_process_and_no_log(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupted() -> None:
        with running(SMALL, DEADLINE_S) as engine:
            pids.append(engine.pid)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert [Path(f"/proc/{pid}").exists() for pid in pids] == [False]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"topology": "tp3pp1"}, LayoutError, "3 TP ranks"),
        ({"random": None, "model": "/nonexistent"}, ConfigError, "nonexistent"),
        ({"store": StoreTarget(backend="file:///proc/nothing")}, ConfigError, "proc/nothing"),
    ],
)
def test_what_keeps_an_engine_from_starting_is_raised_as_what_it_is(
    changes: dict[str, object], error: type[Exception], reason: str
) -> None:
    config = msgspec.structs.replace(SMALL, **changes)

    with pytest.raises(error, match=reason), running(config, DEADLINE_S):
        pytest.fail("it started")
