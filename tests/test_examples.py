"""The examples run, the third-party one from installed wheels, and the guide says what they and the tests say."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.architecture.source import PART_FOLDERS, ROOT

EXAMPLES = ROOT / "examples"
PACKAGE = EXAMPLES / "hicache_sqlite"
FIRST = EXAMPLES / "01_your_own_backend.py"
GUIDE = ROOT / "docs" / "backend-guide.md"
DEADLINE_S = 120
UNBUILT = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    """Run *command* without the paths of this process; return what it wrote to stdout."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(source: Path, wheels: Path) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", wheels, source, cwd=source)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that has the wheels of the project and of the example; its ``bin`` folder."""
    folder = tmp_path_factory.mktemp("installed")
    project, wheels, environment = folder / "project", folder / "wheels", folder / "environment"
    project.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project)
    for part in PART_FOLDERS.values():
        shutil.copytree(part, project / part.name, ignore=UNBUILT)
    shutil.copytree(PACKAGE, folder / "example", ignore=UNBUILT)
    build_wheel(project, wheels)
    build_wheel(folder / "example", wheels)
    venv.create(environment, with_pip=False, symlinks=True)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install")
    run(*pip, "--quiet", "--no-deps", "--no-index", "--no-compile", *wheels.glob("*.whl"), cwd=folder)
    # Their dependencies come from the running environment, behind the wheels on the path.
    [packages] = (environment / "lib").glob("python*/site-packages")
    (packages / "running.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin"


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    assert run(sys.executable, example, cwd=tmp_path)


def test_the_third_party_backend_is_proven_from_its_wheel(installed: Path, tmp_path: Path) -> None:
    shutil.copy(PACKAGE / "pyproject.toml", tmp_path)
    shutil.copytree(PACKAGE / "tests", tmp_path / "tests", ignore=UNBUILT)

    where = run(
        installed / "python", "-c", "import hicache_storage, hicache_sqlite as s; print(hicache_storage.__file__, s.__file__)",
        cwd=tmp_path,
    )  # fmt: skip
    said = run(installed / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=tmp_path)

    assert all(path.startswith(str(installed.parent)) for path in where.split())
    assert re.search(r"^\d+ passed in", said, re.MULTILINE)


def test_doctor_finds_the_third_party_backend_by_its_entry_point(installed: Path, tmp_path: Path) -> None:
    report = json.loads(
        run(installed / "hicache", "doctor", "--store", f"sqlite://{tmp_path}/kv.db", "--json", cwd=tmp_path)
    )

    assert (report["backend"], report["healthy"]) == ("sqlite", True)
    assert report["options"]["path"] == {"value": f"{tmp_path}/kv.db", "source": "URL"}


def python_of(page: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))


def definitions_of(source: str) -> dict[str, str]:
    """Return the text of every class and function at the top of *source*."""
    found = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return {node.name: ast.get_source_segment(source, node) or "" for node in found}


def test_the_guide_shows_the_first_example_word_for_word() -> None:
    assert definitions_of(python_of(GUIDE)) == definitions_of(FIRST.read_text())


def waivers_of(module: Path) -> list[tuple[str, str, str]]:
    """Return class, law and reason of each waiver in a test module, which need not be importable here."""
    found = []
    for cls in ast.parse(module.read_text()).body:
        for node in cls.body if isinstance(cls, ast.ClassDef) else []:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == "waived" for target in targets):
                assert isinstance(node, ast.Assign | ast.AnnAssign)
                assert node.value is not None
                waived = ast.literal_eval(node.value)
                found += [(cls.name, law, reason) for law, reason in waived.items()]  # type: ignore[attr-defined]
    return found


def test_the_guide_lists_every_waiver() -> None:
    rows = [
        f"| `tests/contract/{module.name}` | `{cls}` | `{law}` | {reason} |"
        for module in sorted((ROOT / "tests" / "contract").glob("test_*.py"))
        for cls, law, reason in waivers_of(module)
    ]

    table = re.search(r"<!-- waivers -->\n(.*?)<!-- /waivers -->", GUIDE.read_text(), re.DOTALL)

    assert table is not None
    assert table[1].splitlines()[2:] == rows
