"""The benchmark cases that need SGLang's environment run, on a little of everything."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.machine import Provenance
from benchmarks.registry import CASES
from benchmarks.runner import Settings, scratch_folder
from benchmarks.subjects.factory import SubjectPool
from tests.engines.ready import make_ready

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[Settings]:
    # Making the environment takes longer than any test may; servers and clients have deadlines of their own.
    faulthandler.cancel_dump_traceback_later()
    make_ready(pytestconfig, "sglang")
    provenance = Provenance.here(tmp_path, "a test")
    with scratch_folder(tmp_path) as scratch, closing(SubjectPool(scratch)) as subjects:
        yield Settings(
            scratch=scratch, subjects=subjects, peers=("sglang",), provenance=provenance, rounds=1, small=True
        )


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "sglang" in case.servers])
def test_case_gives_results_of_its_own_kind(name: str, settings: Settings) -> None:
    results = CASES[name].run(settings)

    assert results
    assert {(result.case, type(result)) for result in results} == {(name, CASES[name].kind)}
