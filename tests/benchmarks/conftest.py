"""The harness is a package at the root of the repository, which is not on the path of an installed project."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace

import pytest

from tests.architecture.source import ROOT

if "benchmarks" not in sys.modules:
    _SPEC = importlib.util.spec_from_file_location("benchmarks", ROOT / "benchmarks" / "__init__.py")
    assert _SPEC is not None
    assert _SPEC.loader is not None
    sys.modules["benchmarks"] = importlib.util.module_from_spec(_SPEC)
    _SPEC.loader.exec_module(sys.modules["benchmarks"])

from benchmarks.machine import Provenance
from benchmarks.rows import Row


@pytest.fixture
def provenance() -> Provenance:
    return Provenance(
        commit="abc1234",
        cpu="A CPU",
        cores=2,
        python="3.11.7",
        torch="2.13.0",
        filesystem="ext4",
        load1=0.05,
        noisy=False,
        date="2026-01-02",
        command="python -m benchmarks run file_read",
    )


@pytest.fixture
def row(provenance: Provenance) -> Row:
    return Row(
        case="file_read",
        operation="read",
        subject="raw",
        version="",
        object_nbytes=2 << 20,
        objects=64,
        batch=64,
        threads=1,
        rounds=3,
        p20_s=0.009,
        p50_s=0.01,
        p80_s=0.012,
        best_s=0.008,
        gb_s=13.4217728,
        us_per_object=156.25,
        share_of_raw=1.0,
        raw="raw",
        page_cache="warm",
        calls="os.open, os.preadv, os.close",
        provenance=provenance,
    )


@pytest.fixture
def rows(row: Row) -> list[Row]:
    """Raw, ours at 95 % of it, and one peer at half of it."""
    ours = replace(row, subject="ours", p50_s=0.0105, gb_s=12.78, share_of_raw=0.95)
    peer = replace(row, subject="sglang", p50_s=0.02, gb_s=6.71, share_of_raw=0.5)
    return [row, ours, peer]
