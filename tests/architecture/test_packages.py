"""What is installed is what is in the tree, under one name each."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import hicache_storage
from tests.architecture.source import PART_FOLDERS, ROOT, python_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages_in_the_tree() -> set[str]:
    packages = set()
    for part, folder in PART_FOLDERS.items():
        name = "hicache_storage" if part == "core" else f"hicache_storage.{part}"
        for marker in folder.rglob("__init__.py"):
            inner = marker.parent.relative_to(folder).parts
            packages.add(".".join((name, *inner)))
    return packages


def test_package_list_is_complete() -> None:
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages_in_the_tree()


def test_every_module_lies_in_a_package() -> None:
    stray = [
        str(path.relative_to(ROOT))
        for folder in PART_FOLDERS.values()
        for path in python_files(folder)
        if not (path.parent / "__init__.py").exists()
    ]

    assert stray == []


def test_all_extra_holds_what_the_others_hold() -> None:
    extras = PROJECT["project"]["optional-dependencies"]

    assert {"s3", "redis", "mooncake", "engine", "server", "demo", "test", "all"} <= extras.keys()


def test_public_names_are_exactly_what_is_exported() -> None:
    assert callable(hicache_storage.open_store)  # is there once somebody has asked for it
    visible = {
        name
        for name, value in vars(hicache_storage).items()
        if not name.startswith("_") and getattr(value, "__module__", None) is not None
    }

    assert visible == set(hicache_storage.__all__)
    assert sorted(hicache_storage.__all__) == hicache_storage.__all__


@pytest.mark.parametrize("name", hicache_storage.__all__)
def test_public_name_is_documented(name: str) -> None:
    assert (getattr(hicache_storage, name).__doc__ or "").strip()


def test_wheel_and_sdist_hold_every_module(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT], check=True, capture_output=True
    )
    wheel = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        sdist = {name.split("/", 1)[-1] for name in archive.getnames()}

    for part, folder in PART_FOLDERS.items():
        prefix = "hicache_storage/" if part == "core" else f"hicache_storage/{part}/"
        for path in python_files(folder):
            assert prefix + str(path.relative_to(folder)) in wheel
            assert str(path.relative_to(ROOT)) in sdist
    assert "hicache_storage/py.typed" in wheel
    assert any(name.endswith("entry_points.txt") for name in wheel)
