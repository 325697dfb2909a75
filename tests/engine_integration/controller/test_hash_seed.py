"""Ranks are processes: what a tree does must not come from the order of a set, an address or a hash of one of them."""

from __future__ import annotations

import os
import subprocess
import sys

from hicache_storage.engine_integration.options import EVICTION_POLICIES
from tests.engine_integration.controller.pictured import STEPS
from tests.engine_integration.controller.test_prefix_closed import ROOT


def pictures(hash_seed: str) -> list[str]:
    """Return what a process with this PYTHONHASHSEED has seen its tree become."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine_integration.controller.pictured"],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        timeout=120,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.split()


def test_trees_of_processes_with_different_hash_seeds_are_equal_after_every_step() -> None:
    first = pictures("0")

    assert len(first) == STEPS * len(EVICTION_POLICIES)
    assert len(set(first)) > STEPS
    for hash_seed in ("1", "12345", "random"):
        assert pictures(hash_seed) == first
