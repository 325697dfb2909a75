"""The checker of a server's ranks: the flag, the environment, and where what it finds can be read."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from hicache_storage.cli.serve import command
from hicache_storage.cli.serve.arguments import Settings, add_arguments, read_settings
from hicache_storage.cli.serve.engine import StartEngine
from hicache_storage.cli.serve.rank_logs import with_rank_logs
from hicache_storage.cli.serve.setup import prepare
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from tests.cli.serve.toy_folder import write_toy_folder

ON = {"SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1"}


def engine(tmp_path: Path, *flags: str) -> EngineConfig:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    model = write_toy_folder(tmp_path / "toy")
    return prepare(read_settings(parser.parse_args(["--model-path", str(model), *flags])), lambda _: None).engine


class EngineThatLogs:
    """The part of a client that says where the ranks log."""

    def __init__(self, _config: EngineConfig, *, log_folder: Path | None) -> None:
        self.log_folder = log_folder or Path("/tmp/made")


@pytest.mark.parametrize("folder", [None, Path("mine")])
def test_folder_that_nobody_named_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path | None
) -> None:
    config = engine(tmp_path)

    def run_server(_settings: Settings, start_engine: StartEngine) -> int:
        start_engine(config, folder)
        return 0

    monkeypatch.setattr("hicache_storage.cli.serve.start.run_server", run_server)
    monkeypatch.setattr("hicache_storage.engine_integration.reference_engine.client.EngineClient", EngineThatLogs)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    command.run(parser.parse_args([]))

    told = capsys.readouterr().err
    assert told == ("" if folder else "ranks log to /tmp/made while the server runs; --log-folder keeps their logs\n")


def test_off_is_as_it_was(tmp_path: Path) -> None:
    told: list[str] = []

    for flags in ((), ("--rank-consensus", "off")):
        config = engine(tmp_path, *flags)
        assert with_rank_logs(config, None, told.append, {}) == (config, None)

    assert told == []


def test_the_flag_says_what_ranks_do_and_the_log_folder_takes_what_they_tell(tmp_path: Path) -> None:
    told: list[str] = []

    config, logs = with_rank_logs(engine(tmp_path, "--rank-consensus", "stop"), tmp_path, told.append, {})

    assert logs == tmp_path
    assert config.environment == {
        "HICACHE_RANK_CONSENSUS_CHECKER": "1",
        "HICACHE_RANK_CONSENSUS_ON_DIVERGENCE": "stop",
        "HICACHE_RANK_CONSENSUS_LOG_FOLDER": str(tmp_path),
    }
    assert told == [f"rank consensus: stop; ranks log to {tmp_path}, what is compared to {tmp_path}"]


def test_sglang_s_variable_is_enough_and_a_folder_that_stays_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    told: list[str] = []

    config, logs = with_rank_logs(engine(tmp_path), None, told.append, ON)

    assert logs is not None
    assert logs.is_dir()
    assert logs.parent == tmp_path
    assert config.rank_consensus_log_folder == str(logs)
    assert told == [f"rank consensus: report; ranks log to {logs}, what is compared to {logs}"]


def test_a_folder_for_what_is_compared_may_be_another_one(tmp_path: Path) -> None:
    environ = ON | {"HICACHE_RANK_CONSENSUS_LOG_FOLDER": "/entries"}

    config, logs = with_rank_logs(engine(tmp_path), tmp_path, lambda _: None, environ)

    assert (logs, config.rank_consensus_log_folder) == (tmp_path, "/entries")


def test_a_flag_that_says_off_wins_over_the_environment(tmp_path: Path) -> None:
    config = engine(tmp_path, "--rank-consensus", "off")

    assert with_rank_logs(config, None, lambda _: None, ON) == (config, None)
    assert config.environment == {"HICACHE_RANK_CONSENSUS_CHECKER": "0"}
