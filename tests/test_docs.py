"""Every command and every block of code in the documentation runs; every link leads somewhere.

Blocks marked ``bash`` and ``python`` are run, in order, in one folder a page. A line that takes minutes or changes the
machine (`LONG`) is not run here but read by the program it calls: the targets, flags, extras and cases exist.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hicache_storage.cli.program import build_parser
from hicache_storage.engine_integration.adapters.vllm.options import read_options
from tests.architecture.source import ROOT
from tests.engines.vllm.serving import connector
from tests.tools import option_tables

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*/README.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
LONG = (
    "make",
    "pip",
    "git clone",
    "cd hicache",
    "hicache demo",
    "hicache serve",
    "curl",
    "python -m benchmarks",
    "vllm serve",
)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def blocks_of(page: Path) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in FENCE.finditer(page.read_text())]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=name_of)
def test_every_block_runs(page: Path, tmp_path: Path) -> None:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HICACHE_FILE_PATH": str(tmp_path / "default-store"),
        "HOME": str(tmp_path),
    }
    shell, program = [], []
    for language, body in blocks_of(page):
        if language == "python":
            program.append(body)
        elif language == "bash":
            shell += [line for line in _commands(body) if not _is_long(line) or _check_long(line)]
    for command in (["bash", "-euo", "pipefail", "-c", "\n".join(shell)], [sys.executable, "-c", "\n".join(program)]):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]

    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_named_in_a_page_exists(page: Path) -> None:
    named = set(
        re.findall(
            r"`((?:tests|docs|layout|backends|kernels|engine_integration|benchmarks|examples)/[\w./-]*)`",
            page.read_text(),
        )
    )

    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def _commands(body: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", " ", body)
    # A quoted text may go on over several lines.
    whole = re.sub(r"'[^']*'", lambda quoted: quoted[0].replace("\n", " "), joined)
    return [line for line in whole.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _is_long(line: str) -> bool:
    return line.startswith(LONG)


def _check_long(line: str) -> bool:
    """Check a command that is not run here; always False, so that it is left out of the script."""
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
    elif words[0] == "pip":
        wanted = {extra for group in re.findall(r"hicache-storage\[([\w,]+)\]", line) for extra in group.split(",")}
        assert wanted <= EXTRAS.keys()
    elif words[0] == "hicache":  # tests/cli/serve/test_documented.py runs serve, and asks what curl asks
        build_parser().parse_args(words[1:])
    elif words[0] == "vllm":
        _check_vllm(words)
    elif words[:3] == ["python", "-m", "benchmarks"]:
        subprocess.run(
            [sys.executable, "-m", "benchmarks", words[3], "--help"], cwd=ROOT, check=True, capture_output=True
        )
    return False


def _check_vllm(words: list[str]) -> None:
    """Check what stands behind ``--kv-transfer-config``; vLLM itself is started so by tests/engines/vllm."""
    transfer = json.loads(words[words.index("--kv-transfer-config") + 1])

    assert read_options(transfer.pop("kv_connector_extra_config")).backend == "file:///mnt/kv"
    assert transfer == {name: value for name, value in connector({}).items() if name != "kv_connector_extra_config"}


def test_option_tables_are_those_of_the_options() -> None:
    page = option_tables.PAGE.read_text()

    assert option_tables.filled(page) == page
    assert all(f"<!-- options:{name} -->" in page for name in option_tables.TABLES)
