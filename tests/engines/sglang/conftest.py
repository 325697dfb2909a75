"""The files of this folder run in the environment of the benchmarks' SGLang peer; see tests/engines/inside.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.environments import PEERS
from tests.engines.inside import InsideFile, is_inside
from tests.engines.ready import make_ready

PLUGINS = ("tests.engines.sglang.on_cpu",)
"""What pytest loads inside before it imports any test."""


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> InsideFile | None:
    """Stand in for files whose imports this environment does not have."""
    if is_inside("sglang"):
        return None
    file = InsideFile.from_parent(parent, path=module_path)
    file.environment, file.plugins = PEERS["sglang"], PLUGINS
    file.ready = lambda: make_ready(parent.config, "sglang")
    return file
