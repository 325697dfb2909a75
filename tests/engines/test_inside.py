"""The runner of tests inside an engine's environment lets nothing pass that did not run and pass."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.engines.inside import Inner, run_inside


class Here:
    """This project's own environment in the place of an engine's."""

    name = "here"
    python = Path(sys.executable)

    def environ(self) -> dict[str, str]:
        return os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run(folder: Path, text: str) -> Inner:
    path = folder / "test_some.py"
    path.write_text(text)
    return run_inside(Here(), [str(path)])


def test_a_file_that_passes_is_no_complaint(tmp_path: Path) -> None:
    inner = run(tmp_path, "def test_a(): pass\ndef test_b(): pass\n")

    assert (inner.complaint, inner.passed) == ("", 2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("def test_a(): assert 1 == 2\ndef test_b(): pass\n", "1 of 2 tests failed"),
        ("import pytest\ndef test_a(): pytest.skip('no')\n", "1 of 1 tests were skipped"),
        ("import pytest\n@pytest.mark.xfail\ndef test_a(): assert 0\n", "1 of 1 tests were skipped"),
        ("import pytest\npytest.skip('no', allow_module_level=True)\n", "1 of 1 tests were skipped"),
        ("", "no test was collected"),
        ("import no_such_engine\n", "1 of 1 tests failed"),
        ("import os\ndef test_a(): os._exit(0)\n", "no report"),
    ],
    ids=[
        "a failure",
        "a skip",
        "an expected failure",
        "a skipped file",
        "an empty file",
        "a missing engine",
        "a death",
    ],
)
def test_what_did_not_run_and_pass_is_a_complaint(tmp_path: Path, text: str, complaint: str) -> None:
    assert complaint in run(tmp_path, text).complaint


def test_what_pytest_printed_is_kept(tmp_path: Path) -> None:
    inner = run(tmp_path, "def test_a():\n    print('said inside')\n    assert 0\n")

    assert "said inside" in inner.output


def test_the_project_is_imported_from_the_working_tree(tmp_path: Path) -> None:
    inner = run(tmp_path, "import hicache_storage.layout as l\ndef test_a(): assert 'hicache-inside-' in l.__file__\n")

    assert inner.complaint == ""
