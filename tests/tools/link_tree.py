"""Show the mapped root folders to mypy as the one package they are at run time.

setuptools maps ``layout/`` to ``hicache_storage.layout`` and so on; mypy does not read that mapping.
This builds ``.link_tree/hicache_storage`` out of symlinks with the same shape.
"""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAPPED = ("backends", "engine_integration", "kernels", "layout")


def build(tree: Path) -> None:
    """Make *tree* a folder in which every module lies under its import name."""
    shutil.rmtree(tree, ignore_errors=True)
    package = tree / "hicache_storage"
    package.mkdir(parents=True)
    for entry in (ROOT / "hicache_storage").iterdir():
        if entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    for name in MAPPED:
        (package / name).symlink_to(ROOT / name)


if __name__ == "__main__":
    build(ROOT / ".link_tree")
