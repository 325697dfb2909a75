"""The checker is on while the test decorates."""

from __future__ import annotations

import pytest


@pytest.fixture
def checker_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HICACHE_RANK_CONSENSUS_CHECKER", "1")


@pytest.fixture(autouse=True)
def _no_switch_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_ENABLE_RANK_CONSENSUS_CHECKER", raising=False)
