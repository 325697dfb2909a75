"""`hicache stat`: one object, without its payload."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from hicache_storage.registry import open_store
from tests.cli.deployment import Deployment, flip_bit, truncate
from tests.cli.running import Hicache

FOOTER_NBYTES = 40
PAYLOAD_NBYTES = 2 * 2 * 4 * 8 * 4
BLOCK_NBYTES = 4096


def test_size_age_and_trailer_are_shown(hicache: Hicache, deployment: Deployment) -> None:
    key = deployment.keys[0]

    ended = hicache("stat", key, "--store", deployment.url)

    lines = {line.split()[0]: line.split()[1:] for line in ended.out.splitlines()}
    assert ended.status == 0
    assert lines["key"] == [key]
    assert lines["size"][0] == str(deployment.file_of(key).stat().st_size)
    assert lines["payload"] == f"{PAYLOAD_NBYTES} bytes in checksummed blocks of {BLOCK_NBYTES}".split()


def test_the_same_as_json(hicache: Hicache, deployment: Deployment) -> None:
    key = deployment.keys[0]
    status = deployment.file_of(key).stat()

    ended = hicache("stat", key, "--store", deployment.url, "--json")

    assert ended.status == 0
    assert ended.json() == {
        "key": key,
        "nbytes": status.st_size,
        "modified_s": status.st_mtime,
        "payload_nbytes": PAYLOAD_NBYTES,
        "block_nbytes": BLOCK_NBYTES,
        "problem": None,
    }


def test_an_object_that_is_no_page_owes_no_trailer(hicache: Hicache, deployment: Deployment) -> None:
    for as_json in ((), ("--json",)):
        ended = hicache("stat", deployment.descriptor_key, "--store", deployment.url, *as_json)

        assert ended.status == 0
        assert "none due: this is no page object" in ended.out


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_missing_object_is_status_one(hicache: Hicache, deployment: Deployment, as_json: tuple[str, ...]) -> None:
    ended = hicache("stat", "no such key", "--store", deployment.url, *as_json)

    assert ended.status == 1
    assert ended.out == ""
    assert "no object 'no such key' in this store" in ended.err


@pytest.mark.parametrize("key", ["", "a\udcff"])
def test_what_is_no_key_is_a_usage_error(hicache: Hicache, deployment: Deployment, key: str) -> None:
    ended = hicache("stat", key, "--store", deployment.url)

    assert ended.status == 2
    assert "Unsupported" in ended.err


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_disk_that_is_no_folder_any_more_is_status_three(
    hicache: Hicache, deployment: Deployment, as_json: tuple[str, ...]
) -> None:
    key = deployment.keys[0]
    path = deployment.file_of(key)
    for neighbour in path.parent.iterdir():
        neighbour.unlink()
    path.parent.rmdir()
    path.parent.write_text("")

    ended = hicache("stat", key, "--store", deployment.url, *as_json)

    assert ended.status == 3
    assert ended.out == ""
    assert f"StoreUnavailable: ENOTDIR: Not a directory (backend=file op=stat key={key})" in ended.err


def test_a_store_that_fails_to_read_is_status_three(
    hicache: Hicache, deployment: Deployment, scripted: Callable[[str], list[str]]
) -> None:
    assert hicache("stat", deployment.keys[0], *scripted("read:raise")).status == 3


@pytest.mark.parametrize("lost_nbytes", [1, 7, FOOTER_NBYTES, 500])
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_truncated_object_is_status_four(
    hicache: Hicache, deployment: Deployment, lost_nbytes: int, as_json: tuple[str, ...]
) -> None:
    key = deployment.keys[0]
    truncate(deployment.file_of(key), lost_nbytes)

    ended = hicache("stat", key, "--store", deployment.url, *as_json)

    assert ended.status == 4
    if as_json:
        assert ended.json()["payload_nbytes"] is None
        assert ended.json()["problem"]
    else:
        assert "trailer   " in ended.out


def test_an_object_too_short_for_a_footer_is_status_four(hicache: Hicache, deployment: Deployment) -> None:
    key = deployment.keys[0]
    deployment.file_of(key).write_bytes(b"short")

    ended = hicache("stat", key, "--store", deployment.url)

    assert ended.status == 4
    assert f"an object of 5 bytes has no room for a footer of {FOOTER_NBYTES}" in ended.out


@pytest.mark.parametrize("offset", [-FOOTER_NBYTES, -FOOTER_NBYTES + 8, -28, -24, -16, -1])
def test_a_damaged_footer_is_status_four(hicache: Hicache, deployment: Deployment, offset: int) -> None:
    key = deployment.keys[0]
    flip_bit(deployment.file_of(key), offset)

    assert hicache("stat", key, "--store", deployment.url).status == 4


def test_a_damaged_block_checksum_is_status_four(hicache: Hicache, deployment: Deployment) -> None:
    key = deployment.keys[0]
    flip_bit(deployment.file_of(key), PAYLOAD_NBYTES)

    ended = hicache("stat", key, "--store", deployment.url)

    assert ended.status == 4
    assert "trailer   trailer does not match its own checksum" in ended.out


def test_another_objects_bytes_are_status_four(hicache: Hicache, deployment: Deployment) -> None:
    one, other = deployment.keys[:2]
    shutil.copyfile(deployment.file_of(one), deployment.file_of(other))

    ended = hicache("stat", other, "--store", deployment.url, "--json")

    assert ended.status == 4
    assert "belongs to another key" in str(ended.json()["problem"])


def test_an_object_that_shrinks_meanwhile_is_status_four(
    hicache: Hicache, deployment: Deployment, scripted: Callable[[str], list[str]]
) -> None:
    ended = hicache("stat", deployment.keys[0], *scripted("read:short"))

    assert ended.status == 4
    assert "CorruptObject" in ended.err


def test_an_object_that_goes_meanwhile_is_status_one(
    hicache: Hicache, deployment: Deployment, scripted: Callable[[str], list[str]]
) -> None:
    assert hicache("stat", deployment.keys[0], *scripted("read:miss")).status == 1


def test_the_payload_is_not_read(hicache: Hicache, deployment: Deployment) -> None:
    key = deployment.keys[0]
    flip_bit(deployment.file_of(key), 0)

    assert hicache("stat", key, "--store", deployment.url).status == 0


def test_a_key_is_printed_as_one_line(hicache: Hicache, deployment: Deployment) -> None:
    with open_store(deployment.url) as store:
        store.write("a\nb", [b"x"])

    assert hicache("stat", "a\nb", "--store", deployment.url).out.startswith("key       a\\nb\n")
