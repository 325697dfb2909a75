"""`hicache explain`: a key read back, and why another deployment misses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_storage.engine_integration.page_store import Descriptor
from hicache_storage.layout import Grid, Namespace, Variant
from hicache_storage.registry import open_store
from tests.cli.deployment import Deployment, deploy
from tests.cli.running import Hicache

MLA_KEY = f"{'ab' * 32}_ukv1-0123456789abcdef_L0-15"


@pytest.fixture
def key(deployment: Deployment) -> str:
    return f"{deployment.page_hashes[0]}_{deployment.namespace.digest}_L2-4_H1"


def test_a_key_is_taken_apart_without_a_store(hicache: Hicache, key: str, deployment: Deployment) -> None:
    ended = hicache("explain", key, "--offline", "--store", "no such backend", "--json")

    assert ended.status == 0
    assert ended.json() == {
        "key": key,
        "page_hash": deployment.page_hashes[0],
        "namespace": deployment.namespace.digest,
        "layers": [2, 4],
        "head_group": 1,
    }


def test_the_same_for_a_human(hicache: Hicache, key: str) -> None:
    ended = hicache("explain", key, "--offline")

    assert ended.status == 0
    assert "layers     2 to 3 of the whole model" in ended.out
    assert "KV heads   group 1" in ended.out


def test_a_key_of_mla_has_no_heads(hicache: Hicache) -> None:
    assert "its rows have no heads" in hicache("explain", MLA_KEY, "--offline").out
    assert hicache("explain", MLA_KEY, "--offline", "--json").json()["head_group"] is None


def test_the_store_says_model_dtype_page_and_heads(hicache: Hicache, deployment: Deployment, key: str) -> None:
    status = deployment.file_of(key).stat()

    document = hicache("explain", key, "--store", deployment.url, "--json").json()

    assert document["in_store"] is True
    assert (document["nbytes"], document["modified_s"]) == (status.st_size, status.st_mtime)
    assert document["fields"] == deployment.namespace.encoded_fields()
    assert document["heads"] == [1, 2]
    assert document["other_namespaces"] == []


def test_the_store_says_the_same_to_a_human(hicache: Hicache, deployment: Deployment, key: str) -> None:
    ended = hicache("explain", key, "--store", deployment.url)

    assert ended.status == 0
    assert "KV heads   1 to 1 of the whole model (group 1)" in ended.out
    assert "model_id = demo-model" in ended.out
    assert "dtype = float32" in ended.out
    assert f"object     in the store, {deployment.file_of(key).stat().st_size} bytes, 20" in ended.out


def test_another_namespace_is_shown_with_the_fields_that_differ(
    hicache: Hicache, deployment: Deployment, key: str
) -> None:
    other = deploy(deployment.root, model_id="demo-model-v2", dtype="bfloat16")

    ended = hicache("explain", key, "--store", deployment.url)

    assert ended.status == 0
    assert hicache("explain", key, "--store", deployment.url, "--json").json()["other_namespaces"] == [
        {
            "digest": other.namespace.digest,
            "differs_in": {"dtype": ["float32", "bfloat16"], "model_id": ["demo-model", "demo-model-v2"]},
        }
    ]
    assert f"readers of {other.namespace.digest} do not see it; theirs differs in" in ended.out
    assert "dtype: 'float32' here, 'bfloat16' there" in ended.out
    assert "page_size" not in ended.out.split("differs in")[1]


def test_a_missing_object_is_status_one_and_still_explained(hicache: Hicache, deployment: Deployment, key: str) -> None:
    deployment.file_of(key).unlink()

    table = hicache("explain", key, "--store", deployment.url)
    document = hicache("explain", key, "--store", deployment.url, "--json")

    assert table.status == document.status == 1
    assert "object     not in the store" in table.out
    assert document.json()["in_store"] is False
    assert document.json()["fields"] == deployment.namespace.encoded_fields()


def test_a_namespace_that_nobody_wrote_is_said_to_be_so(hicache: Hicache, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    ended = hicache("explain", MLA_KEY, "--store", f"file://{tmp_path}/empty")

    assert ended.status == 1
    assert "nobody wrote a page of it here" in ended.out


def test_without_a_description_nothing_is_compared(hicache: Hicache, deployment: Deployment, key: str) -> None:
    other = deploy(deployment.root, model_id="demo-model-v2")
    deployment.file_of(deployment.descriptor_key).unlink()

    table = hicache("explain", key, "--store", deployment.url)
    document = hicache("explain", key, "--store", deployment.url, "--json").json()

    assert table.status == 0
    assert "no description in the store: cannot say what the namespace holds" in table.out
    assert "nobody wrote" not in table.out
    assert "differs in" not in table.out
    assert f"other namespaces here, not compared: {other.namespace.digest}" in table.out
    assert (document["description"], document["fields"]) == ("missing", None)
    assert document["other_namespaces"] == [{"digest": other.namespace.digest, "differs_in": None}]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda body: body[: len(body) // 2], "no namespace descriptor: "),
        (lambda body: body.replace(b"demo-model", b"demo-nodel"), "does not match its own checksum"),
        (lambda body: b"", "no namespace descriptor: "),
    ],
)
def test_a_damaged_description_is_status_four_and_compares_nothing(
    hicache: Hicache, deployment: Deployment, key: str, body: Callable[[bytes], bytes], reason: str
) -> None:
    deploy(deployment.root, model_id="demo-model-v2")
    file = deployment.file_of(deployment.descriptor_key)
    file.write_bytes(body(file.read_bytes()))

    table = hicache("explain", key, "--store", deployment.url)
    document = hicache("explain", key, "--store", deployment.url, "--json")

    assert table.status == document.status == 4
    assert "the description is damaged: " in table.out
    assert reason in table.out
    assert "differs in" not in table.out
    assert document.json()["description"] == "damaged"
    assert reason in str(document.json()["description_problem"])
    assert document.json()["fields"] is None


def test_a_description_of_another_namespace_is_damaged(hicache: Hicache, deployment: Deployment, key: str) -> None:
    other = deploy(deployment.root, model_id="demo-model-v2")
    body = deployment.file_of(other.descriptor_key).read_bytes()
    deployment.file_of(deployment.descriptor_key).write_bytes(body)

    ended = hicache("explain", key, "--store", deployment.url)

    assert ended.status == 4
    assert f"the description is damaged: it describes {other.namespace.digest}" in ended.out
    assert "demo-model-v2" not in ended.out


def test_a_field_that_only_one_namespace_has_is_not_set_in_the_other(
    hicache: Hicache, deployment: Deployment, key: str
) -> None:
    grid, shape = Grid(2, 1), deployment.shape
    other = Namespace.of(model_id="demo-model", shape=shape, grid=grid, variant=Variant(weights_revision="r2"))
    with open_store(deployment.url) as store:
        store.write(f"namespace_{other.digest}.json", [Descriptor.of(other, shape).encode()])

    ended = hicache("explain", key, "--store", deployment.url)

    assert "weights_revision: not set here, 'r2' there" in ended.out


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "key",
        MLA_KEY.upper(),
        MLA_KEY[1:],
        f"{MLA_KEY}_H",
        MLA_KEY.replace("L0-15", "L15-0"),
        f"{MLA_KEY}\n",
        "\udcff",
    ],
)
@pytest.mark.parametrize("offline", [(), ("--offline",)])
def test_a_malformed_key_is_a_usage_error_that_says_what_a_key_is(
    hicache: Hicache, deployment: Deployment, bad: str, offline: tuple[str, ...]
) -> None:
    ended = hicache("explain", bad, "--store", deployment.url, *offline)

    assert ended.status == 2
    assert ended.out == ""
    assert "expected <64 hex digits>_ukv1-<16 hex digits>_L<start>-<stop>[_H<group>]" in ended.err


@pytest.mark.parametrize("script", ["stat:raise", "read:raise", "list:raise"])
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_store_that_does_not_answer_is_status_three(
    hicache: Hicache, key: str, scripted: Callable[[str], list[str]], script: str, as_json: tuple[str, ...]
) -> None:
    ended = hicache("explain", key, *scripted(script), *as_json)

    assert ended.status == 3
    assert ended.out == ""


def test_a_store_that_cannot_list_leaves_the_others_out(hicache: Hicache, deployment: Deployment, key: str) -> None:
    config = f'{{"path": "{deployment.root}"}}'
    flags = ("--store", "tests.cli.stores:UnlistableStore", "--hicache-storage-backend-extra-config", config)

    ended = hicache("explain", key, *flags, "--json")

    assert ended.status == 0
    assert "other_namespaces" not in ended.json()
    assert hicache("explain", key, *flags).status == 0


GEOMETRY = '"geometry": {"num_layers": 1, "head_dim": 1, "v_head_dim": 1, "block_nbytes": 1}'
EVIL_FIELDS = r'"fields": {"head_group": "two", "e\u001b[2J": "\u001b"}'


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff\xfe",
        f'{{"format": "hicache-namespace-v9", "digest": "x", "fields": {{}}, {GEOMETRY}}}'.encode(),
        f'{{"format": "hicache-namespace-v1", "digest": "\\u001b", {EVIL_FIELDS}, {GEOMETRY}}}'.encode(),
    ],
)
def test_a_strange_description_does_not_stop_it(
    hicache: Hicache, deployment: Deployment, key: str, body: bytes
) -> None:
    deployment.file_of(deployment.descriptor_key).write_bytes(body)
    with open_store(deployment.url) as store:
        store.write("namespace_other.json", [body])

    table = hicache("explain", key, "--store", deployment.url)

    assert table.status == 4
    assert "\x1b" not in table.out
    assert hicache("explain", key, "--store", deployment.url, "--json").json()["in_store"] is True
