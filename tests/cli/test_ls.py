"""`hicache ls`: what a store holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hicache_storage.engine_integration.page_store import Descriptor
from hicache_storage.registry import open_store
from tests.cli.deployment import NUM_PAGES, OBJECTS_PER_PAGE, Deployment, deploy
from tests.cli.running import Hicache

EVERY_OBJECT = NUM_PAGES * OBJECTS_PER_PAGE + 1


def object_keys(document: dict[str, object]) -> list[str]:
    objects = document["objects"]
    assert isinstance(objects, list)
    return [entry["key"] for entry in objects]


def test_namespaces_are_listed_with_what_they_stand_for(hicache: Hicache, deployment: Deployment) -> None:
    ended = hicache("ls", "--store", deployment.url)

    assert ended.status == 0
    header, row = (line.split() for line in ended.out.splitlines())
    assert header == ["namespace", "model", "dtype", "page", "grid", "pages", "objects", "size"]
    assert row[:7] == [deployment.namespace.digest, "demo-model", "float32", "4", "2x1", "3", "13"]


def test_namespaces_as_json(hicache: Hicache, deployment: Deployment) -> None:
    sizes = [path.stat().st_size for path in deployment.root.glob("objects/*/*/*")]

    ended = hicache("ls", "--store", deployment.url, "--json")

    assert ended.status == 0
    assert ended.json() == {
        "namespaces": [
            {
                "digest": deployment.namespace.digest,
                "fields": deployment.namespace.encoded_fields(),
                "pages": NUM_PAGES,
                "objects": EVERY_OBJECT,
                "nbytes": sum(sizes),
            }
        ]
    }


def test_foreign_objects_are_counted_apart(hicache: Hicache, deployment: Deployment) -> None:
    with open_store(deployment.url) as store:
        store.write("somebody else's", [b"12345"])

    namespaces = hicache("ls", "--store", deployment.url, "--json").json()["namespaces"]

    assert isinstance(namespaces, list)
    assert [entry["digest"] for entry in namespaces] == [deployment.namespace.digest, ""]
    assert namespaces[1] == {"digest": "", "fields": None, "pages": 0, "objects": 1, "nbytes": 5}
    assert "(foreign)" in hicache("ls", "--store", deployment.url).out


def test_objects_are_listed_in_order_with_their_sizes(hicache: Hicache, deployment: Deployment) -> None:
    ended = hicache("ls", "--store", deployment.url, "--objects", "--json")

    assert ended.status == 0
    assert object_keys(ended.json()) == [*deployment.keys, deployment.descriptor_key]
    for entry in ended.json()["objects"]:  # type: ignore[attr-defined]
        status = deployment.file_of(entry["key"]).stat()
        assert (entry["nbytes"], entry["modified_s"]) == (status.st_size, status.st_mtime)


def test_objects_as_a_table(hicache: Hicache, deployment: Deployment) -> None:
    ended = hicache("ls", "--store", deployment.url, "--objects")

    header, *rows = (line.split() for line in ended.out.splitlines())
    assert header == ["key", "bytes", "modified"]
    assert [row[0] for row in rows] == [*deployment.keys, deployment.descriptor_key]
    assert [int(row[1]) for row in rows] == [deployment.file_of(row[0]).stat().st_size for row in rows]


def test_a_prefix_selects(hicache: Hicache, deployment: Deployment) -> None:
    page = deployment.page_hashes[1]

    ended = hicache("ls", page[:20], "--store", deployment.url, "--json")

    assert object_keys(ended.json()) == [key for key in deployment.keys if key.startswith(page)]


def test_a_namespace_selects_its_objects_and_its_description(hicache: Hicache, tmp_path: Path) -> None:
    ours, theirs = deploy(tmp_path / "kv"), deploy(tmp_path / "kv", dtype="float16")

    ended = hicache("ls", "--namespace", theirs.namespace.digest, "--store", ours.url, "--json")

    assert object_keys(ended.json()) == [*theirs.keys, theirs.descriptor_key]
    assert len(object_keys(hicache("ls", "--namespace", "ukv1-", "--store", ours.url, "--json").json())) == 26
    assert hicache("ls", "--namespace", "L0-2", "--store", ours.url).status == 1


def test_a_limit_stops(hicache: Hicache, deployment: Deployment) -> None:
    ended = hicache("ls", "--objects", "--limit", "2", "--store", deployment.url, "--json")

    assert len(object_keys(ended.json())) == 2


@pytest.mark.parametrize("limit", ["0", "-1", "x"])
def test_a_limit_is_at_least_one(hicache: Hicache, deployment: Deployment, limit: str) -> None:
    ended = hicache("ls", "--objects", "--limit", limit, "--store", deployment.url)

    assert ended.status == 2
    assert "--limit" in ended.err


@pytest.mark.parametrize("what", [(), ("--objects",), ("no such prefix",)])
def test_nothing_to_list_is_status_one(hicache: Hicache, tmp_path: Path, what: tuple[str, ...]) -> None:
    (tmp_path / "empty").mkdir()

    table = hicache("ls", *what, "--store", f"file://{tmp_path}/empty")
    document = hicache("ls", *what, "--store", f"file://{tmp_path}/empty", "--json")

    assert table.status == document.status == 1
    assert document.json() == {"objects" if what else "namespaces": []}


def test_an_empty_store_is_said_to_be_empty(hicache: Hicache, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for what in ((), ("--objects",), ("--json",), ("--objects", "--json")):
        ended = hicache("ls", *what, "--store", f"file://{tmp_path}/empty")

        assert ended.err == "hicache: the store is empty\n"


def test_a_selection_of_nothing_is_no_empty_store(hicache: Hicache, deployment: Deployment) -> None:
    prefix = hicache("ls", "no such prefix", "--store", deployment.url)
    namespace = hicache("ls", "--namespace", "ukv1-0", "--store", deployment.url, "--json")

    assert prefix.status == namespace.status == 1
    assert prefix.err == "hicache: no object whose key starts with 'no such prefix'\n"
    assert namespace.err == "hicache: no object of a namespace 'ukv1-0'\n"


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_store_that_does_not_answer_is_status_three(
    hicache: Hicache, scripted: Callable[[str], list[str]], as_json: tuple[str, ...]
) -> None:
    ended = hicache("ls", *scripted("list:raise"), *as_json)

    assert ended.status == 3
    assert ended.out == ""
    assert "StoreUnavailable" in ended.err


def test_a_store_that_cannot_list_is_a_usage_error(hicache: Hicache, deployment: Deployment) -> None:
    config = json.dumps({"path": str(deployment.root)})
    flags = ("--store", "tests.cli.stores:UnlistableStore", "--hicache-storage-backend-extra-config", config)

    ended = hicache("ls", *flags)

    assert ended.status == 2
    assert "Unsupported: this store cannot list" in ended.err


def test_a_description_that_is_damaged_does_not_hide_the_namespace(hicache: Hicache, deployment: Deployment) -> None:
    deployment.file_of(deployment.descriptor_key).write_bytes(b"{")

    ended = hicache("ls", "--store", deployment.url)

    assert ended.status == 0
    assert f"{deployment.namespace.digest}  (no description)" in ended.out


def test_a_description_that_lacks_fields_is_shown_with_gaps(hicache: Hicache, deployment: Deployment) -> None:
    path = deployment.file_of(deployment.descriptor_key)
    whole = Descriptor.parse(path.read_bytes())
    known = {name: value for name, value in whole.fields.items() if name not in ("head_group", "model_id")}
    path.write_bytes(replace(whole, fields=known).encode())

    ended = hicache("ls", "--store", deployment.url)

    assert ended.status == 0
    assert ended.out.splitlines()[1].split()[1:5] == ["?", "float32", "4", "2x?"]


def test_a_key_cannot_move_the_cursor_or_break_a_line(hicache: Hicache, deployment: Deployment) -> None:
    with open_store(deployment.url) as store:
        store.write("evil\x1b[2J\nkey ü", [b"x"])

    ended = hicache("ls", "evil", "--store", deployment.url)

    assert ended.out.splitlines()[1].startswith(r"evil\x1b[2J\nkey ü  ")
    assert object_keys(hicache("ls", "evil", "--store", deployment.url, "--json").json()) == ["evil\x1b[2J\nkey ü"]
