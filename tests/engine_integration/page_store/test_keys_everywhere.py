"""F1, F3, F21: every entry point names the same objects, and no other request, tenant or model names any of them."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hicache_storage import open_store
from hicache_storage.layout import (
    Grid,
    KVShape,
    Namespace,
    ShardLayout,
    Topology,
    Variant,
    object_key,
    page_hashes,
    request_seed,
)
from hicache_storage.store import ObjectStore
from hicache_storage.types import MISS, ObjectWrite, Outcome, RangeRead
from tests.engine_integration.page_store.coded import Deployment, coded_page, poisoned_pages, views
from tests.engine_integration.page_store.evicting import LeastRecentlyUsed
from tests.layout.test_golden import CASES, GOLDEN, TOKENS, namespace_of

SHAPE = KVShape.mha(num_layers=2, num_kv_heads=2, head_dim=16, dtype="float32", page_tokens=64)
GRID = Grid(1, 1)
ONE_RANK = Topology(1, 1)
EQUAL_TOKENS = [7] * 256
SCOPES = list(itertools.product([None, "a", "b"], [None, "1", "2"]))
CONTAINERS: dict[str, Callable[[list[int]], Iterable[int]]] = {
    "list": list,
    "tuple": tuple,
    "array": lambda tokens: array("q", tokens),
    "numpy-int32": lambda tokens: np.array(tokens, dtype=np.int32),
    "numpy-int64": lambda tokens: np.array(tokens, dtype=np.int64),
    "torch-int64": lambda tokens: torch.tensor(tokens, dtype=torch.int64),
}


class KeysByEntry(LeastRecentlyUsed):
    """Notes by which operation each key came in."""

    def __init__(self) -> None:
        super().__init__(10_000)
        self.keys: dict[str, set[str]] = {"write": set(), "exists": set(), "read": set(), "touch": set()}

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        self.keys["write"].update(write.key for write in writes)
        return super().write_many(writes)

    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        self.keys["exists"].update(keys)
        return super().exists_many(keys)

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        self.keys["read"].update(read.key for read in reads)
        return super().read_many(reads)

    def touch_many(self, keys: Sequence[str]) -> list[Outcome]:
        self.keys["touch"].update(key for key in keys if not key.startswith("namespace_"))
        return super().touch_many(keys)


def use_every_entry(store: ObjectStore, hashes: Sequence[str]) -> None:
    deployment = Deployment(store, SHAPE, GRID, ONE_RANK)
    client = deployment.client()
    pages = [coded_page(client.layout, page) for page in range(len(hashes))]
    assert all(client.write_pages(hashes, views(pages)))
    assert client.lookup_prefix(hashes) == len(hashes)
    assert all(client.read_pages(hashes, views(poisoned_pages(client.layout, len(hashes)))))


def scoped(tokens: Iterable[int], salt: str | None, lora: str | None) -> list[str]:
    return page_hashes(tokens, SHAPE.page_tokens, prior=request_seed(cache_salt=salt, lora_id=lora))


@pytest.mark.parametrize(("salt", "lora"), SCOPES, ids=str)
def test_every_entry_and_every_container_gives_the_same_keys(salt: str | None, lora: str | None) -> None:
    store = KeysByEntry()

    for container in CONTAINERS.values():
        use_every_entry(store, scoped(container(EQUAL_TOKENS), salt, lora))

    assert {len(keys) for keys in store.keys.values()} == {4 * 4}
    assert len({frozenset(keys) for keys in store.keys.values()}) == 1


def test_requests_of_different_scopes_share_no_object() -> None:
    stores = [KeysByEntry() for _ in SCOPES]
    for store, (salt, lora) in zip(stores, SCOPES, strict=True):
        use_every_entry(store, scoped(EQUAL_TOKENS, salt, lora))

    keys = [key for store in stores for key in store.keys["write"]]

    assert len(set(keys)) == len(keys) == len(SCOPES) * 16


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS.keys())
def test_request_without_scope_has_the_golden_keys(container: Callable[[list[int]], Iterable[int]]) -> None:
    shape, grid, _ = CASES["mha"]
    layout = ShardLayout(shape, grid, ONE_RANK.shard(shape, tp_rank=0, pp_rank=0))
    page_hash = page_hashes(container(TOKENS), shape.page_tokens)[1]

    keys = {object_key(page_hash, namespace_of(shape, grid).digest, chunk) for chunk in suffixes(layout)}

    assert keys == {path.name for path in (GOLDEN / "mha").iterdir() if not path.name.startswith("namespace_")}


def suffixes(layout: ShardLayout) -> list[str]:
    step, heads = layout.grid.head_partition, layout.shape.num_kv_heads
    return [
        f"L{layers.start}-{layers.stop}_H{group}"
        for layers in layout.grid.layer_ranges(layout.shape)
        for group in range(heads // step)
    ]


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    options = {"path": str(tmp_path)} if request.param == "file" else {}
    with open_store(request.param, options) as opened:
        yield opened


BASE_SHAPE = KVShape.mha(num_layers=2, num_kv_heads=2, head_dim=16, dtype="bfloat16", page_tokens=64)
FROZEN_KEY = "a8174ecf09ad1ec35b7f32d29833369f63740866c76ab0ebc368573089b94072_ukv1-71d09687662546b9_L1-2_H0"
BASE = Namespace.of(model_id="org/m", shape=BASE_SHAPE, grid=GRID)
ONE_FIELD_CHANGED = [
    replace(BASE, model_id="org-m"),
    replace(BASE, model_id="org_m"),
    replace(BASE, model_id="m"),
    replace(BASE, dtype="float16"),
    replace(BASE, dtype="float8_e4m3fn"),
    replace(BASE, page_size=32),
    replace(BASE, rank_replicated=True),
    replace(BASE, total_kv_heads=4),
    replace(BASE, layer_partition=2),
    replace(BASE, head_partition=2),
    replace(BASE, object_layout="page-unified-v2"),
    replace(BASE, variant=Variant(weights_revision="r2")),
    replace(BASE, variant=Variant(component="draft")),
]


def test_no_object_of_a_namespace_is_found_with_one_field_changed(store: ObjectStore) -> None:
    deployment = Deployment(store, BASE_SHAPE, GRID, ONE_RANK, model_id="org/m")
    client = deployment.client()
    hashes = page_hashes(EQUAL_TOKENS, 64)
    page = memoryview(bytes(client.layout.page_nbytes))
    assert all(client.write_pages(hashes, [page] * len(hashes)))

    digests = [namespace.digest for namespace in [BASE, *ONE_FIELD_CHANGED]]
    keys = [
        object_key(page_hash, digest, suffix)
        for digest in digests[1:]
        for page_hash in hashes
        for suffix in suffixes(client.layout)
    ]

    assert len(set(digests)) == len(digests)
    assert store.exists_many(keys) == [MISS] * len(keys)
    assert not any(store.read_into(key, 0, [bytearray(1)]) for key in keys)


def test_stored_key_is_a_frozen_string(store: ObjectStore) -> None:
    deployment = Deployment(store, BASE_SHAPE, GRID, ONE_RANK, model_id="org/m")
    client = deployment.client()

    client.write_pages(page_hashes(EQUAL_TOKENS[:64], 64), [memoryview(bytes(client.layout.page_nbytes))])

    assert {info.key for info in store.list_keys() if info.key.endswith("L1-2_H0")} == {FROZEN_KEY}


@pytest.mark.parametrize("model_id", ["/models/" + "x" * 300, "org/模型: v1 é", "a:b c/d\\e", "." * 200], ids=len)
def test_any_model_path_can_be_stored_under(store: ObjectStore, model_id: str) -> None:
    deployment = Deployment(store, SHAPE, GRID, ONE_RANK, model_id=model_id)
    hashes = page_hashes(EQUAL_TOKENS, 64)

    deployment.write_all(hashes)

    outcomes, pages = deployment.read(hashes)
    assert all(outcomes)
    assert pages == [coded_page(deployment.layouts[0, 0], page) for page in range(len(hashes))]
