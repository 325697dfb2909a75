"""Where the code of each part lies, for the tests that keep its shape."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PART_FOLDERS = {
    "core": ROOT / "hicache_storage",
    "layout": ROOT / "layout",
    "backends": ROOT / "backends",
    "kernels": ROOT / "kernels",
    "engine_integration": ROOT / "engine_integration",
}
ENTRY_FOLDERS = ("cli", "testing")


def python_files(folder: Path) -> list[Path]:
    """Return every Python file below *folder* that belongs to the project, not to an environment beside it."""
    return sorted(path for path in folder.rglob("*.py") if not {".venv", "scratch"} & set(path.parts))


def part_files(part: str) -> list[Path]:
    """Return the files of one part; the entry points inside the core's folder are a part of their own."""
    if part == "entry":
        return [path for name in ENTRY_FOLDERS for path in python_files(PART_FOLDERS["core"] / name)]
    files = python_files(PART_FOLDERS[part])
    if part != "core":
        return files
    return [path for path in files if path.relative_to(PART_FOLDERS["core"]).parts[0] not in ENTRY_FOLDERS]


def imports_of(path: Path) -> Iterator[str]:
    """Yield the absolute name of every module that *path* imports, at any depth. Relative imports are banned by lint."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(module: str) -> str:
    """Return the part that a module of the package belongs to."""
    words = module.split(".")
    if len(words) < 2 or words[1] not in {*PART_FOLDERS, *ENTRY_FOLDERS}:
        return "core"
    return "entry" if words[1] in ENTRY_FOLDERS else words[1]
