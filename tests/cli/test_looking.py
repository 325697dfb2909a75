"""Commands that only look make nothing, change nothing, and say so when there is no store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hicache_storage import open_store
from tests.cli.deployment import Deployment
from tests.cli.running import Hicache

LOOKING = {
    "ls": ["ls"],
    "ls objects": ["ls", "--objects"],
    "stat": ["stat", "some key"],
    "explain": ["explain", f"{'ab' * 32}_ukv1-0123456789abcdef_L0-1"],
    "verify": ["verify"],
    "verify key": ["verify", "some key"],
    "verify and quarantine": ["verify", "--quarantine"],
}


@pytest.mark.parametrize("as_json", [(), ("--json",)])
@pytest.mark.parametrize("looking", LOOKING.values(), ids=LOOKING)
def test_looking_at_a_store_that_is_not_there_makes_none(
    hicache: Hicache, tmp_path: Path, looking: list[str], as_json: tuple[str, ...]
) -> None:
    ended = hicache(*looking, "--store", f"file://{tmp_path}/mistyped/kv", *as_json)

    assert (ended.status, ended.out) == (3, "")
    assert ended.err.startswith("hicache: StoreUnavailable: ")
    assert f"{tmp_path}/mistyped/kv" in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("looking", LOOKING.values(), ids=LOOKING)
def test_looking_at_tiers_of_which_one_is_not_there_makes_none(
    hicache: Hicache, deployment: Deployment, tmp_path: Path, looking: list[str]
) -> None:
    stores = json.dumps({"stores": [f"file://{tmp_path}/mistyped/kv", deployment.url]})

    ended = hicache(*looking, "--store", "tiered", "--hicache-storage-backend-extra-config", stores)

    assert (ended.status, ended.out) == (3, "")
    assert f"{tmp_path}/mistyped/kv" in ended.err
    assert not (tmp_path / "mistyped").exists()


@pytest.mark.parametrize("looking", LOOKING.values(), ids=LOOKING)
def test_looking_at_tiers_promotes_nothing(
    hicache: Hicache, deployment: Deployment, tmp_path: Path, looking: list[str]
) -> None:
    open_store("file", {"path": str(tmp_path / "upper")}).close()
    before = snapshot(tmp_path / "upper"), snapshot(deployment.root)
    stores = json.dumps({"stores": [f"file://{tmp_path}/upper", deployment.url]})

    ended = hicache(*looking, "--store", "tiered", "--hicache-storage-backend-extra-config", stores)

    assert ended.err == "" or ended.status == 1
    assert (snapshot(tmp_path / "upper"), snapshot(deployment.root)) == before


@pytest.mark.parametrize("looking", LOOKING.values(), ids=LOOKING)
def test_looking_at_a_file_finds_no_store(hicache: Hicache, tmp_path: Path, looking: list[str]) -> None:
    (tmp_path / "kv").write_text("a file, no folder")

    ended = hicache(*looking, "--store", f"file://{tmp_path}/kv")

    assert (ended.status, ended.out) == (3, "")
    assert f"{tmp_path}/kv" in ended.err
    assert (tmp_path / "kv").read_text() == "a file, no folder"


@pytest.mark.parametrize("looking", LOOKING.values(), ids=LOOKING)
def test_looking_changes_nothing(hicache: Hicache, deployment: Deployment, looking: list[str]) -> None:
    before = snapshot(deployment.root)

    hicache(*looking, "--store", f"{deployment.url}?capacity_nbytes=4096")

    assert snapshot(deployment.root) == before


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Name every file and folder below *folder*, with its size and when it was last changed."""
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}
