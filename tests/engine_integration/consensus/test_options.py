"""How the checker is switched on, for this process and for those that it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache_storage.engine_integration.consensus import ConsensusOptions
from hicache_storage.engine_integration.consensus.options import Mode, environment_of
from hicache_storage.errors import ConfigError


@pytest.mark.parametrize("mode", [None, "off", "report", "stop"])
@pytest.mark.parametrize("log_folder", [None, "/logs"])
def test_processes_that_get_the_variables_have_what_was_given(mode: Mode | None, log_folder: str | None) -> None:
    options = ConsensusOptions.from_environment(environment_of(mode, log_folder))

    assert options == ConsensusOptions.from_environment({}, mode=mode, log_folder=log_folder)
    assert (options.checker, options.on_divergence) == (
        mode in ("report", "stop"),
        "stop" if mode == "stop" else "report",
    )
    assert options.log_folder == (None if log_folder is None else Path(log_folder))


def test_what_is_given_comes_before_the_environment_and_leaves_the_rest_of_it() -> None:
    environ = {
        "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1",
        "HICACHE_RANK_CONSENSUS_ON_DIVERGENCE": "stop",
        "HICACHE_RANK_CONSENSUS_HISTORY": "3",
    }

    given = ConsensusOptions.from_environment(environ, mode="report")
    off = ConsensusOptions.from_environment(environ, mode="off")
    silent = ConsensusOptions.from_environment(environ)

    assert (given.on_divergence, given.history, off.checker) == ("report", 3, False)
    assert (silent.checker, silent.on_divergence) == (True, "stop")


def test_a_wrong_value_names_its_variable() -> None:
    with pytest.raises(ConfigError, match="HICACHE_RANK_CONSENSUS_ON_DIVERGENCE"):
        ConsensusOptions.from_environment({"HICACHE_RANK_CONSENSUS_ON_DIVERGENCE": "panic"})
