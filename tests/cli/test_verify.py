"""`hicache verify`: every byte, against trailer and name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_storage.registry import open_store
from hicache_storage.types import Status
from tests.cli.deployment import NUM_PAGES, OBJECTS_PER_PAGE, Deployment, flip_bit, truncate
from tests.cli.running import Hicache

EVERY_OBJECT = NUM_PAGES * OBJECTS_PER_PAGE + 1


def problems(document: dict[str, object]) -> dict[str, tuple[str, bool]]:
    listed = document["problems"]
    assert isinstance(listed, list)
    return {problem["key"]: (problem["health"], problem["quarantined"]) for problem in listed}


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


DAMAGE: dict[str, Callable[[Path], None]] = {
    "first byte": lambda path: flip_bit(path, 0),
    "last byte of the payload": lambda path: flip_bit(path, 511),
    "block checksum": lambda path: flip_bit(path, 512),
    "magic": lambda path: flip_bit(path, -40),
    "version": lambda path: flip_bit(path, -32),
    "reserved": lambda path: flip_bit(path, -28),
    "payload length": lambda path: flip_bit(path, -16),
    "footer checksum": lambda path: flip_bit(path, -1),
    "one byte short": lambda path: truncate(path, 1),
    "half": lambda path: truncate(path, 280),
    "empty": empty,
    "zeros": zero,
    "one byte long": append,
}


def test_an_intact_store_is_status_zero(hicache: Hicache, deployment: Deployment) -> None:
    nbytes = sum(path.stat().st_size for path in deployment.root.glob("objects/*/*/*"))

    table = hicache("verify", "--store", deployment.url)
    document = hicache("verify", "--store", deployment.url, "--json")

    assert table.status == document.status == 0
    assert table.out.endswith(f": {EVERY_OBJECT} intact\n")
    assert document.json() == {
        "objects": EVERY_OBJECT,
        "nbytes": nbytes,
        "intact": EVERY_OBJECT,
        "corrupt": 0,
        "missing": 0,
        "foreign": 0,
        "problems": [],
    }


@pytest.mark.parametrize("damage", DAMAGE)
def test_any_damage_is_status_four_and_names_the_object(hicache: Hicache, deployment: Deployment, damage: str) -> None:
    key = deployment.keys[5]
    DAMAGE[damage](deployment.file_of(key))

    table = hicache("verify", "--store", deployment.url)
    document = hicache("verify", "--store", deployment.url, "--json")

    assert table.status == document.status == 4
    assert any(line.split()[:2] == ["corrupt", key] for line in table.out.splitlines())
    assert problems(document.json()) == {key: ("corrupt", False)}
    assert document.json()["intact"] == EVERY_OBJECT - 1


def test_an_object_under_another_name_is_corrupt(hicache: Hicache, deployment: Deployment) -> None:
    one, other = deployment.keys[0], deployment.keys[1]
    shutil.copyfile(deployment.file_of(one), deployment.file_of(other))

    assert problems(hicache("verify", "--store", deployment.url, "--json").json()) == {other: ("corrupt", False)}


def test_a_description_that_is_cut_is_corrupt(hicache: Hicache, deployment: Deployment) -> None:
    truncate(deployment.file_of(deployment.descriptor_key), 20)

    ended = hicache("verify", "--store", deployment.url, "--json")

    assert ended.status == 4
    assert problems(ended.json()) == {deployment.descriptor_key: ("corrupt", False)}


def test_foreign_objects_are_no_fault(hicache: Hicache, deployment: Deployment) -> None:
    with open_store(deployment.url) as store:
        store.write("somebody else's", [b"x"])

    ended = hicache("verify", "--store", deployment.url, "--json")

    assert ended.status == 0
    assert problems(ended.json()) == {"somebody else's": ("foreign", False)}


def test_named_objects_are_checked_alone(hicache: Hicache, deployment: Deployment) -> None:
    flip_bit(deployment.file_of(deployment.keys[0]), 0)

    assert hicache("verify", deployment.keys[1], deployment.keys[2], "--store", deployment.url).status == 0
    assert hicache("verify", deployment.keys[1], deployment.keys[0], "--store", deployment.url).status == 4


def test_a_prefix_selects(hicache: Hicache, deployment: Deployment) -> None:
    flip_bit(deployment.file_of(deployment.keys[0]), 0)
    intact = deployment.keys[-1][:20]

    ended = hicache("verify", "--prefix", intact, "--store", deployment.url, "--json")

    assert ended.status == 0
    assert ended.json()["objects"] == OBJECTS_PER_PAGE


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_named_object_that_is_missing_is_status_one(
    hicache: Hicache, deployment: Deployment, as_json: tuple[str, ...]
) -> None:
    ended = hicache("verify", deployment.keys[0], "nowhere", "--store", deployment.url, *as_json)

    assert ended.status == 1
    assert "nowhere" in ended.out
    if as_json:
        assert problems(ended.json()) == {"nowhere": ("missing", False)}


def test_corrupt_goes_before_missing(hicache: Hicache, deployment: Deployment) -> None:
    flip_bit(deployment.file_of(deployment.keys[0]), 0)

    assert hicache("verify", deployment.keys[0], "nowhere", "--store", deployment.url).status == 4


def test_an_empty_store_is_intact(hicache: Hicache, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    ended = hicache("verify", "--store", f"file://{tmp_path}/empty")

    assert ended.status == 0
    assert ended.out == "0 objects, 0 B: nothing there\n"


@pytest.mark.parametrize("script", ["list:raise", "read:raise"])
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_store_that_does_not_answer_is_status_three(
    hicache: Hicache, scripted: Callable[[str], list[str]], script: str, as_json: tuple[str, ...]
) -> None:
    ended = hicache("verify", *scripted(script), *as_json)

    assert ended.status == 3
    assert ended.out == ""


def test_an_unreadable_object_is_corrupt(
    hicache: Hicache, deployment: Deployment, scripted: Callable[[str], list[str]]
) -> None:
    ended = hicache("verify", deployment.keys[0], *scripted("read:corrupt"), "--json")

    assert ended.status == 4
    assert problems(ended.json()) == {deployment.keys[0]: ("corrupt", False)}


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_quarantine_takes_out_what_is_corrupt_and_the_next_write_heals_it(
    hicache: Hicache, deployment: Deployment, as_json: tuple[str, ...]
) -> None:
    broken = [deployment.keys[0], deployment.keys[7]]
    for key in broken:
        flip_bit(deployment.file_of(key), 3)

    ended = hicache("verify", "--quarantine", "--store", deployment.url, *as_json)

    assert ended.status == 4
    if as_json:
        assert problems(ended.json()) == dict.fromkeys(broken, ("corrupt", True))
    else:
        assert ended.out.count("quarantined") == 2
    assert deployment.files() == {*deployment.keys, deployment.descriptor_key} - set(broken)
    assert hicache("verify", "--store", deployment.url).status == 0

    assert Status.STORED in [outcome.status for outcome in deployment.write()]
    assert deployment.files() == {*deployment.keys, deployment.descriptor_key}
    assert hicache("verify", "--store", deployment.url).status == 0


def test_without_quarantine_nothing_changes(hicache: Hicache, deployment: Deployment) -> None:
    path = deployment.file_of(deployment.keys[0])
    flip_bit(path, 0)
    before = {path: path.read_bytes() for path in deployment.root.glob("objects/*/*/*")}

    hicache("verify", "--store", deployment.url)

    assert {path: path.read_bytes() for path in deployment.root.glob("objects/*/*/*")} == before


def test_a_quarantine_that_fails_is_not_claimed(
    hicache: Hicache, deployment: Deployment, scripted: Callable[[str], list[str]]
) -> None:
    flip_bit(deployment.file_of(deployment.keys[0]), 0)

    ended = hicache("verify", "--quarantine", *scripted("quarantine:raise"), "--json")

    assert ended.status == 4
    assert problems(ended.json()) == {deployment.keys[0]: ("corrupt", False)}


def test_quarantine_leaves_foreign_objects_alone(hicache: Hicache, deployment: Deployment) -> None:
    with open_store(deployment.url) as store:
        store.write("foreign", [b"x"])

    hicache("verify", "--quarantine", "--store", deployment.url)

    assert "foreign" in deployment.files()
