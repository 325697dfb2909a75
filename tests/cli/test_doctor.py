"""`hicache doctor`: where options come from, and whether the store works end to end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_storage.cli.doctor import plain_value
from hicache_storage.config import Secret
from hicache_storage.types import WriteResult
from tests.cli.deployment import Deployment
from tests.cli.running import Hicache

CHECKS = ["write", "exists", "read", "ranged read", "verify", "list", "delete"]
SECRET = "open sesame"

BREAKAGES = {
    "write:raise": (3, "write"),
    "write:lost_answer": (3, "write"),
    "write:drop": (3, "exists"),
    "stat:raise": (3, "exists"),
    "stat:miss": (3, "exists"),
    "read:raise": (3, "read"),
    "read:miss": (4, "read"),
    "read:corrupt": (4, "read"),
    "read:short": (4, "read"),
    "read:long": (4, "read"),
    "read:corrupt:16": (4, "ranged read"),
    "list:raise": (3, "list"),
    "list:miss": (3, "list"),
    "delete:raise:8": (3, "delete"),
    "delete:miss:8": (3, "delete"),
}
"""Fault -> exit status and the check that finds it. Between the eight rounds of the first check there are seven deletes."""


def checks(document: dict[str, object]) -> dict[str, bool]:
    listed = document["checks"]
    assert isinstance(listed, list)
    return {check["name"]: check["passed"] for check in listed}


def option(document: dict[str, object], name: str) -> dict[str, object]:
    options = document["options"]
    assert isinstance(options, dict)
    found: dict[str, object] = options[name]
    return found


def test_a_healthy_store_passes_every_check(hicache: Hicache, tmp_path: Path) -> None:
    ended = hicache("doctor", "--store", f"file://{tmp_path}/kv", "--json")

    document = ended.json()
    assert ended.status == 0
    assert checks(document) == dict.fromkeys(CHECKS, True)
    assert document["backend"] == "file"
    assert document["healthy"] is True


def test_speeds_are_given_where_bytes_move(hicache: Hicache, tmp_path: Path) -> None:
    listed = hicache("doctor", "--store", f"file://{tmp_path}/kv", "--json").json()["checks"]

    assert isinstance(listed, list)
    assert [check["name"] for check in listed if check["gb_s"]] == ["write", "read", "ranged read", "verify"]
    assert all(check["seconds"] > 0 for check in listed[:5])
    assert [check["seconds"] for check in listed[5:]] == [None, None]


def test_a_healthy_store_is_a_table_of_ok(hicache: Hicache, tmp_path: Path) -> None:
    ended = hicache("doctor", "--store", f"file://{tmp_path}/kv?fsync=none")

    assert ended.status == 0
    assert ended.err == ""
    rows = [line.split("  ")[0] for line in ended.out.split("check ")[1].splitlines()[1:]]
    assert rows == CHECKS
    assert "FAILED" not in ended.out
    assert ["fsync", "none", "URL"] in [line.split() for line in ended.out.splitlines()]
    assert ["direct", "False", "default"] in [line.split() for line in ended.out.splitlines()]


def test_every_option_shows_its_source(hicache: Hicache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "store.toml"
    config.write_text("io_threads = 2\n")
    monkeypatch.setenv("HICACHE_FILE_ORPHAN_AGE_S", "60")

    flags = ("--hicache-storage-backend-extra-config", f"@{config}")
    document = hicache("doctor", "--store", f"file://{tmp_path}/kv?max_size=1GiB", *flags, "--json").json()

    assert option(document, "path") == {"value": str(tmp_path / "kv"), "source": "URL"}
    assert option(document, "capacity_nbytes") == {"value": 1 << 30, "source": "URL"}
    assert option(document, "io_threads") == {"value": 2, "source": str(config)}
    assert option(document, "orphan_age_s") == {
        "value": 60.0,
        "source": "environment variable HICACHE_FILE_ORPHAN_AGE_S",
    }
    assert option(document, "fsync") == {"value": "none", "source": "default"}
    assert option(document, "direct") == {"value": False, "source": "default"}


def test_an_option_without_a_value_is_null(hicache: Hicache, tmp_path: Path) -> None:
    document = hicache("doctor", "--store", f"file://{tmp_path}/kv", "--json").json()

    assert option(document, "capacity_nbytes") == {"value": None, "source": "default"}


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Path("/mnt/kv"), "/mnt/kv"),
        (Secret(SECRET), "***"),
        ((1, "a", None), [1, "a", None]),
        ({"nodes": (Path("/a"), Secret(SECRET))}, {"nodes": ["/a", "***"]}),
        (frozenset({2}), [2]),
        (float("inf"), "inf"),
        (1.5, 1.5),
        (True, True),
        (WriteResult.STORED, "WriteResult.STORED"),
    ],
)
def test_an_option_is_json_of_its_own_kind_and_no_secret(value: object, plain: object) -> None:
    assert plain_value(value) == plain


def test_the_environment_alone_names_a_store(hicache: Hicache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HICACHE_STORAGE_BACKEND", "file")
    monkeypatch.setenv("HICACHE_STORAGE_BACKEND_EXTRA_CONFIG", json.dumps({"path": str(tmp_path / "kv")}))

    ended = hicache("doctor", "--json")

    assert ended.status == 0
    assert option(ended.json(), "path") == {
        "value": str(tmp_path / "kv"),
        "source": "environment variable HICACHE_STORAGE_BACKEND_EXTRA_CONFIG",
    }


@pytest.mark.parametrize("as_json", [(), ("--json",)])
@pytest.mark.parametrize("source", ["extra config", "environment variable HICACHE_SCRIPTED_PASSWORD"])
def test_a_secret_is_masked_and_its_source_is_not(
    hicache: Hicache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, as_json: tuple[str, ...]
) -> None:
    options = {"path": str(tmp_path / "kv")}
    if source == "extra config":
        options["password"] = SECRET
    else:
        monkeypatch.setenv("HICACHE_SCRIPTED_PASSWORD", SECRET)
    flags = ("--store", "tests.cli.stores:ScriptedStore", "--hicache-storage-backend-extra-config", json.dumps(options))

    ended = hicache("doctor", *flags, *as_json)

    assert ended.status == 0
    assert SECRET not in ended.out + ended.err
    if as_json:
        assert option(ended.json(), "password") == {"value": "***", "source": source}
    else:
        assert ["password", "***", *source.split()] in [line.split() for line in ended.out.splitlines()]


def test_a_secret_is_masked_when_it_is_wrong(hicache: Hicache, tmp_path: Path) -> None:
    options = json.dumps({"path": str(tmp_path), "password": [SECRET]})

    ended = hicache(
        "doctor", "--store", "tests.cli.stores:ScriptedStore", "--hicache-storage-backend-extra-config", options
    )

    assert ended.status == 2
    assert "password = '***'" in ended.err
    assert SECRET not in ended.out + ended.err


@pytest.mark.parametrize("as_json", [(), ("--json",)])
@pytest.mark.parametrize("script", BREAKAGES)
def test_a_broken_store_fails_at_the_check_that_finds_it(
    hicache: Hicache, scripted: Callable[[str], list[str]], script: str, as_json: tuple[str, ...]
) -> None:
    status, culprit = BREAKAGES[script]

    ended = hicache("doctor", *scripted(script), *as_json)

    assert ended.status == status
    if as_json:
        passed = CHECKS[: CHECKS.index(culprit)]
        assert checks(ended.json()) == dict.fromkeys(passed, True) | {culprit: False}
        assert ended.json()["healthy"] is False
    else:
        (failed,) = [line for line in ended.out.splitlines() if "FAILED" in line]
        assert failed.startswith(f"{culprit}  ")


@pytest.mark.parametrize(
    ("script", "check", "op"),
    [
        ("write:raise,delete:raise", "write", "write"),
        ("stat:raise", "exists", "stat"),
        ("read:raise", "read", "read"),
        ("delete:raise", "delete", "delete"),
    ],
)
def test_a_failed_check_names_the_operation_that_failed(
    hicache: Hicache, scripted: Callable[[str], list[str]], script: str, check: str, op: str
) -> None:
    ended = hicache("doctor", *scripted(script))

    (failed,) = [line for line in ended.out.splitlines() if "FAILED" in line]
    assert failed.startswith(f"{check}  ")
    assert f"op={op} " in failed


def test_a_store_that_forbids_deleting_fails_at_delete_alone(
    hicache: Hicache, scripted: Callable[[str], list[str]]
) -> None:
    ended = hicache("doctor", *scripted("delete:raise"), "--json")

    assert checks(ended.json()) == dict.fromkeys(CHECKS[:-1], True) | {"delete": False}


def test_finding_an_object_there_is_not_taken_for_the_speed_of_writing_it(
    hicache: Hicache, scripted: Callable[[str], list[str]]
) -> None:
    listed = hicache("doctor", *scripted("delete:raise"), "--json").json()["checks"]

    assert isinstance(listed, list)
    assert (listed[0]["name"], listed[0]["seconds"], listed[0]["gb_s"]) == ("write", None, None)
    assert "cannot be deleted" in listed[0]["detail"]


@pytest.mark.parametrize("script", ["", *BREAKAGES])
def test_nothing_is_left_behind_whatever_fails(
    hicache: Hicache, deployment: Deployment, scripted: Callable[[str], list[str]], script: str
) -> None:
    before = deployment.files()

    hicache("doctor", *scripted(script))

    assert deployment.files() == before
    assert list(deployment.root.glob("tmp/*")) == []
    assert list(deployment.root.glob("quarantine/*")) == []


def test_a_store_that_cannot_list_is_healthy_and_says_what_is_lost(hicache: Hicache, tmp_path: Path) -> None:
    options = json.dumps({"path": str(tmp_path / "kv")})

    ended = hicache(
        "doctor", "--store", "tests.cli.stores:UnlistableStore", "--hicache-storage-backend-extra-config", options
    )

    assert ended.status == 0
    assert "this store cannot list, so hicache ls does not work on it" in ended.out


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_store_that_does_not_open_is_a_failed_check_with_its_options(
    hicache: Hicache, tmp_path: Path, as_json: tuple[str, ...]
) -> None:
    (tmp_path / "kv").write_text("a file, no folder")

    ended = hicache("doctor", "--store", f"file://{tmp_path}/kv", *as_json)

    assert ended.status == 3
    assert str(tmp_path / "kv") in ended.out
    if as_json:
        assert checks(ended.json()) == {"open": False}
        assert option(ended.json(), "path")["source"] == "URL"


def test_a_wrong_option_is_a_usage_error(hicache: Hicache, tmp_path: Path) -> None:
    ended = hicache("doctor", "--store", f"file://{tmp_path}/kv?io_thread=2", "--json")

    assert ended.status == 2
    assert ended.out == ""
    assert "did you mean io_threads?" in ended.err


def test_a_capacity_below_what_is_there_costs_no_object(hicache: Hicache, deployment: Deployment) -> None:
    before = deployment.files()

    ended = hicache("doctor", "--store", f"{deployment.url}?capacity_nbytes=4096", "--json")

    assert ended.status == 0
    assert option(ended.json(), "capacity_nbytes")["value"] == 4096
    assert deployment.files() == before


@pytest.mark.parametrize("as_json", [(), ("--json",)])
@pytest.mark.parametrize(("capacity", "remarked"), [("10", True), ("1MiB", True), ("10GiB", False)])
def test_a_capacity_with_no_room_for_an_object_is_remarked(
    hicache: Hicache, tmp_path: Path, capacity: str, remarked: bool, as_json: tuple[str, ...]
) -> None:
    ended = hicache("doctor", "--store", f"file://{tmp_path}/kv?capacity_nbytes={capacity}", *as_json)

    assert ended.status == 0
    assert ("has no room for the object of 2 MiB" in ended.out) is remarked
    if as_json:
        assert bool(ended.json()["remarks"]) is remarked


def test_a_capacity_of_a_tier_costs_no_object_either(hicache: Hicache, deployment: Deployment) -> None:
    before = deployment.files()
    stores = json.dumps({"stores": [f"{deployment.url}?capacity_nbytes=4096"]})

    ended = hicache("doctor", "--store", "tiered", "--hicache-storage-backend-extra-config", stores, "--json")

    assert ended.status == 0
    assert deployment.files() == before
