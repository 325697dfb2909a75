from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hicache_storage.engine_integration.reference_engine.model_folder import default_cache, find_model
from hicache_storage.engine_integration.reference_engine.random_model import RandomShape, write_random_model

SEED = 20260301


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A random model of 4 layers, 8 query heads and 4 KV heads."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    write_random_model(folder, RandomShape(), seed=SEED)
    return folder


@pytest.fixture(scope="session")
def real_model() -> Path:
    """SmolLM2-135M-Instruct, converted on a machine's first run and kept where the demo keeps it."""
    source = find_model(None, default_cache())
    source.prepare(timeout_s=600)
    return source.folder
