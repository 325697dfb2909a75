"""What a rank's process writes into its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache_storage.engine_integration.reference_engine.client import EngineClient
from hicache_storage.engine_integration.reference_engine.messages import Generate
from tests.engine_integration.reference_engine.asking import ask, config, prompt
from tests.engine_integration.reference_engine.places import file_place


@pytest.mark.parametrize(("level", "logged"), [("error", set()), ("debug", {"DEBUG", "INFO", "WARNING"})])
def test_a_rank_logs_from_the_level_on_that_it_was_told(tmp_path: Path, level: str, logged: set[str]) -> None:
    finds_nothing = {"faults": {"miss_rate": 1, "ops": ["stat"]}}
    store = file_place(tmp_path / "kv", middleware=finds_nothing).target

    with EngineClient(config(store=store, log_level=level), log_folder=tmp_path / "logs") as engine:
        ask(engine, Generate("a", prompt(1), 2))

    lines = engine.log_of(0).read_text().splitlines()
    found = {word for line in lines for word in line.split() if word in ("DEBUG", "INFO", "WARNING", "ERROR")}
    assert found == logged
