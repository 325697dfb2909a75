"""Commands on a backend that lets errors of the system through."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hicache_storage import open_store
from hicache_storage.cli.demo.scene import Scene
from hicache_storage.cli.demo.stored import count_there, delete
from hicache_storage.config import from_mapping
from hicache_storage.errors import StoreError
from hicache_storage.registry import resolve_store
from tests.cli.foreign_stores import KINDS
from tests.cli.running import Hicache

CHECKS = ["open", "write", "exists", "read", "list", "delete", "close"]
KEY = f"{'ab' * 32}_ukv1-0123456789abcdef_L0-1"
LOOKING = {
    "ls": (["ls"], "list"),
    "ls objects": (["ls", "--objects"], "list"),
    "verify": (["verify"], "list"),
    "verify key": (["verify", KEY], "stat"),
    "stat": (["stat", KEY], "stat"),
    "explain": (["explain", KEY], "stat"),
    "opening": (["ls"], "open"),
    "closing": (["verify"], "close"),
}
"""Command -> its arguments and the method of the store that it needs."""

foreign = pytest.mark.parametrize("kind", ["TimeoutError", "BrokenPipeError", "OSError"])


def flags(path: Path, fails: str) -> list[str]:
    options = json.dumps({"path": str(path / "kv"), "fails": fails})
    return ["--store", "tests.cli.foreign_stores:ForeignStore", "--hicache-storage-backend-extra-config", options]


def last_check(document: dict[str, object]) -> dict[str, object]:
    listed = document["checks"]
    assert isinstance(listed, list)
    last: dict[str, object] = listed[-1]
    return last


@foreign
@pytest.mark.parametrize("fails", CHECKS)
def test_an_error_of_the_system_is_a_failed_check(hicache: Hicache, tmp_path: Path, fails: str, kind: str) -> None:
    ended = hicache("doctor", *flags(tmp_path, f"{fails}:{kind}"), "--json")

    failed = last_check(ended.json())
    assert (ended.status, failed["name"], failed["passed"]) == (3, fails, False)
    assert str(failed["detail"]).startswith(f"StoreError: {kind}: {KINDS[kind]()}")
    assert ended.json()["healthy"] is False


def test_an_error_of_the_system_says_who_let_it_through(hicache: Hicache, tmp_path: Path) -> None:
    ended = hicache("doctor", *flags(tmp_path, "read:TimeoutError"))

    (failed,) = [line for line in ended.out.splitlines() if "FAILED" in line]
    assert "the backend lets it through" in failed
    assert ended.err == ""


def test_an_error_of_the_system_is_logged_with_its_place(
    hicache: Hicache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        hicache("doctor", *flags(tmp_path, "read:TimeoutError"))

    assert "foreign_stores.py" in caplog.text


def test_the_first_failure_decides_the_status_also_if_closing_fails(hicache: Hicache, tmp_path: Path) -> None:
    ended = hicache("doctor", *flags(tmp_path, "read:CorruptObject,close:TimeoutError"), "--json")

    assert ended.status == 4
    assert last_check(ended.json())["name"] == "close"


def test_an_error_of_ours_is_said_to_come_from_nobody_else(hicache: Hicache, tmp_path: Path) -> None:
    ended = hicache("doctor", "--store", f"file://{tmp_path}/kv?create=false")

    assert "StoreUnavailable" in ended.out
    assert "lets it through" not in ended.out


@foreign
@pytest.mark.parametrize(("looking", "fails"), LOOKING.values(), ids=LOOKING)
def test_looking_ends_with_an_error_of_the_store(
    hicache: Hicache, tmp_path: Path, looking: list[str], fails: str, kind: str
) -> None:
    open_store("file", {"path": str(tmp_path / "kv")}).close()

    ended = hicache(*looking, *flags(tmp_path, f"{fails}:{kind}"))

    assert (ended.status, ended.out) == (3, "")
    assert ended.err.startswith(f"hicache: StoreError: {kind}: {KINDS[kind]()}")


@foreign
@pytest.mark.parametrize("fails", ["open", "close"])
def test_a_replay_with_bytes_ends_with_an_error_of_the_store(
    hicache: Hicache, tmp_path: Path, fails: str, kind: str
) -> None:
    ended = hicache("replay", "--requests", "1", "--bytes", *flags(tmp_path, f"{fails}:{kind}"))

    assert ended.status == 3
    assert f"hicache: StoreError: {kind}: {KINDS[kind]()}" in ended.err


@foreign
@pytest.mark.parametrize("fails", ["open", "exists", "delete", "close"])
def test_a_demo_that_looks_into_its_store_meets_an_error_of_the_store(tmp_path: Path, fails: str, kind: str) -> None:
    options = {"path": str(tmp_path / "kv"), "fails": f"{fails}:{kind}"}
    store = resolve_store("tests.cli.foreign_stores:ForeignStore", from_mapping(options, "a test"))
    scene = cast("Scene", SimpleNamespace(store=store))

    with pytest.raises(StoreError, match=kind):
        (delete if fails == "delete" else count_there)(scene, [KEY])
