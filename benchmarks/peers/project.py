"""This project, importable in another environment without being installed there: a copy that cannot grow stale."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def offer_project(folder: Path) -> None:
    """Put into *folder* what a process that has it on its path imports of this project; nothing that is there is touched.

    The repository's root will not do: its folder `kernels` would be taken for a package that transformers looks for.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for name in ("benchmarks", "tests"):
        _link(folder / name, ROOT / name)
    mapping = dict(project["tool"]["setuptools"]["package-dir"])
    package = folder / "hicache_storage"
    package.mkdir(exist_ok=True)
    for entry in (ROOT / mapping.pop("hicache_storage")).iterdir():
        if entry.name != "__pycache__":
            _link(package / entry.name, entry)
    for name, source in mapping.items():
        _link(package / name.removeprefix("hicache_storage."), ROOT / source)
    _describe(folder, project["project"])


def _link(path: Path, target: Path) -> None:
    if not path.is_symlink():
        path.symlink_to(target)


def _describe(folder: Path, project: dict[str, object]) -> None:
    """Write what an installation would have: backends are found by their entry points."""
    info = folder / f"hicache_storage-{project['version']}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"]
    assert isinstance(groups, dict)
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
