"""Whatever layout and topology wrote a page, every other reads the same bytes, through SGLang's own host pools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hicache_storage.layout import Grid, KVShape, Namespace, object_key
from hicache_storage.registry import open_store
from tests.engines.sglang.adapter.deployment import FILE_STORE, GQA, LATENT, MODEL, hashes_of, model_page, ranks
from tests.engines.sglang.adapter.host_pools import MHA_LAYOUTS, MLA_LAYOUTS

PAGES = 5
FLEET: dict[str, Any] = {"topologies": "tp4pp2,tp2pp1,tp1pp1", "num_layers": 4, "total_kv_heads": 4}


def golden_objects(shape: KVShape, grid: Grid) -> dict[str, bytes]:
    """Return the payload of every object of the model's first pages, cut out of the model by hand."""
    digest = Namespace.of(model_id=MODEL, shape=shape, grid=grid).digest
    objects = {}
    for page, page_hash in enumerate(hashes_of(PAGES)):
        rows = model_page(shape, page)
        for chunk in grid.chunks(shape):
            mine = rows[chunk.layers.start : chunk.layers.stop]
            if chunk.group is not None:
                first = chunk.group * grid.head_partition
                mine = mine[:, :, :, first : first + grid.head_partition]
            objects[object_key(page_hash, digest, chunk.suffix)] = np.ascontiguousarray(mine).tobytes()
    return objects


def stored_payloads(folder: Path, golden: dict[str, bytes]) -> dict[str, bytes]:
    with open_store(FILE_STORE, {"path": folder}) as store:
        found = {}
        for info in store.list_keys():
            if info.key.startswith("namespace_"):
                continue
            body = bytearray(len(golden.get(info.key, b"")))
            assert store.read_into(info.key, 0, [body])
            found[info.key] = bytes(body)
    return found


@pytest.mark.parametrize("topology", ["tp1pp1", "tp2pp1", "tp4pp2", "tp8pp1"])
@pytest.mark.parametrize("layout", MHA_LAYOUTS)
def test_objects_hold_the_models_page_unified_bytes(layout: str, topology: str, tmp_path: Path) -> None:
    golden = golden_objects(GQA, Grid(2, 1))

    with ranks(topology, layout, tmp_path, **FLEET) as writers:
        for writer in writers:
            writer.fill(PAGES)
            assert all(writer.write(hashes_of(PAGES)))

    assert stored_payloads(tmp_path, golden) == golden


@pytest.mark.parametrize("topology", ["tp1pp1", "tp2pp2"])
@pytest.mark.parametrize("layout", MLA_LAYOUTS)
def test_objects_of_latent_rows_hold_the_models_bytes(layout: str, topology: str, tmp_path: Path) -> None:
    golden = golden_objects(LATENT, Grid(2, 0))

    with ranks(topology, layout, tmp_path, LATENT, layer_partition=2, num_layers=4) as writers:
        for writer in writers:
            writer.fill(PAGES)
            assert all(writer.write(hashes_of(PAGES)))

    assert stored_payloads(tmp_path, golden) == golden


@pytest.mark.parametrize(
    ("written", "topology"), [("tp4pp2", "tp1pp1"), ("tp4pp2", "tp2pp1"), ("tp4pp2", "tp8pp1"), ("tp1pp1", "tp4pp2")]
)
@pytest.mark.parametrize("layout", MHA_LAYOUTS)
def test_every_rank_reads_its_share_of_what_another_topology_wrote(
    layout: str, written: str, topology: str, tmp_path: Path
) -> None:
    with ranks(written, "page_first", tmp_path, **FLEET) as writers:
        for writer in writers:
            writer.fill(PAGES)
            assert all(writer.write(hashes_of(PAGES)))

    with ranks(topology, layout, tmp_path, **FLEET) as readers:
        for reader in readers:
            assert reader.storage.batch_exists(hashes_of(PAGES + 2)) == PAGES
            assert reader.read(hashes_of(PAGES)) == [True] * PAGES
            assert all(reader.holds(page, at) for page, at in enumerate(reader.places(PAGES)))


@pytest.mark.parametrize("topology", ["tp1pp1", "tp4pp2"])
@pytest.mark.parametrize("layout", MLA_LAYOUTS)
def test_every_rank_reads_the_latent_rows_of_its_layers(layout: str, topology: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"layer_partition": 2, "num_layers": 4}
    with ranks("tp2pp2", "page_first", tmp_path, LATENT, **options) as writers:
        for writer in writers:
            writer.fill(PAGES)
            assert all(writer.write(hashes_of(PAGES)))

    with ranks(topology, layout, tmp_path, LATENT, **options) as readers:
        for reader in readers:
            assert reader.read(hashes_of(PAGES)) == [True] * PAGES
            assert all(reader.holds(page, at) for page, at in enumerate(reader.places(PAGES)))


@pytest.mark.parametrize("layout", MHA_LAYOUTS)
def test_reader_off_the_grid_reads_heads_and_layers_out_of_objects(layout: str, tmp_path: Path) -> None:
    with ranks("tp1pp1", "page_head", tmp_path) as writers:
        writers[0].fill(PAGES)
        assert all(writers[0].write(hashes_of(PAGES)))

    whole: dict[str, Any] = {
        "layer_partition": 4,
        "head_partition": 4,
        "num_layers": 4,
        "total_kv_heads": 4,
        "read_only": True,
    }
    with ranks("tp2pp4", layout, tmp_path, **whole) as readers:
        for reader in readers:
            assert reader.read(hashes_of(PAGES)) == [True] * PAGES
            assert all(reader.holds(page, at) for page, at in enumerate(reader.places(PAGES)))


def test_pages_that_were_not_read_are_left_alone(tmp_path: Path) -> None:
    with ranks("tp1pp1", "page_first", tmp_path) as (only,):
        only.fill(PAGES)
        only.write(hashes_of(PAGES))

        only.read(hashes_of(PAGES))

        touched = set(only.places(PAGES))
        rest = [page for page in range(only.pool.page_num) if page not in touched]
        slots = [slot for page in rest for slot in range(page * 16, (page + 1) * 16)]
        assert (only.pool.kv_buffer[:, slots].view(torch.uint8) == 0xA5).all()
