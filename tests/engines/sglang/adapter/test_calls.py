"""Every call that SGLang makes of a backend, and that none of them raises once it is attached."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest import mock

import pytest
import torch
from sglang.srt.observability.metrics_collector import StorageMetrics

from hicache_storage.backends.file import FileStore
from hicache_storage.engine_integration.adapters.sglang.pages import ArrangedPages, PagesInPlace
from hicache_storage.errors import StoreUnavailable
from hicache_storage.layout import KVShape, page_hashes
from tests.engines.sglang.adapter.deployment import GQA, LATENT, hashes_of, ranks
from tests.engines.sglang.adapter.host_pools import MHA_LAYOUTS, MLA_LAYOUTS, slots_of

PAGES = 5
OWN_GRID = [*((GQA, layout) for layout in MHA_LAYOUTS), *((LATENT, layout) for layout in MLA_LAYOUTS)]
IN_PLACE = {
    (GQA, "layer_first"),
    (GQA, "page_first_direct"),
    (GQA, "page_unified"),
    (LATENT, "layer_first"),
    (LATENT, "page_first_direct"),
    (LATENT, "page_unified"),
}


def bytes_of(page: torch.Tensor | None) -> bytes | None:
    return None if page is None else page.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(("shape", "layout"), OWN_GRID)
def test_bytes_move_without_a_copy_wherever_the_layout_allows(shape: KVShape, layout: str, tmp_path: Path) -> None:
    with ranks("tp2", layout, tmp_path, shape) as (one, _):
        (part,) = one.storage._kv.parts

    assert type(part.pages) is (PagesInPlace if (shape, layout) in IN_PLACE else ArrangedPages)


@pytest.mark.parametrize("scheme", ["unified", "rank-suffix"])
@pytest.mark.parametrize(("shape", "layout"), OWN_GRID)
def test_what_a_deployment_wrote_it_reads(shape: KVShape, layout: str, scheme: str, tmp_path: Path) -> None:
    with ranks("tp2", layout, tmp_path, shape, key_scheme=scheme) as writers:
        for writer in writers:
            if writer.storage._kv.parts[0].writes and not (shape.is_mla and writer is writers[1]):
                writer.fill(PAGES)
                assert writer.write(hashes_of(PAGES)) == [True] * PAGES

    with ranks("tp2", layout, tmp_path, shape, key_scheme=scheme) as readers:
        for reader in readers:
            assert reader.storage.batch_exists(hashes_of(PAGES)) == PAGES
            assert reader.read(hashes_of(PAGES)) == [True] * PAGES
            assert all(reader.holds(page, at) for page, at in enumerate(reader.places(PAGES)))


@pytest.mark.parametrize("scratch", [1, 3 * 64 * 1024])
def test_little_scratch_memory_changes_nothing(scratch: int, tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path, scratch_nbytes=scratch) as (only,):
        only.fill(PAGES)
        assert only.write(hashes_of(PAGES)) == [True] * PAGES
        assert only.read(hashes_of(PAGES)) == [True] * PAGES
        assert all(only.holds(page, at) for page, at in enumerate(only.places(PAGES)))


@pytest.mark.parametrize("layout", MHA_LAYOUTS)
def test_damaged_page_ends_what_is_read(layout: str, tmp_path: Path) -> None:
    with ranks("tp1", layout, tmp_path, scratch_nbytes=1) as (only,):
        only.fill(PAGES)
        only.write(hashes_of(PAGES))
        (victim,) = tmp_path.rglob(f"{hashes_of(PAGES)[2]}*")
        body = bytearray(victim.read_bytes())
        body[1000] ^= 4
        victim.write_bytes(body)

        read = only.read(hashes_of(PAGES))

        assert read == [True, True, False, False, False]
        assert all(only.holds(page, at) for page, at in enumerate(only.places(2)))


def test_page_that_failed_is_written_anew(tmp_path: Path) -> None:
    with ranks("tp1", "page_first_direct", tmp_path) as (only,):
        only.fill(PAGES)
        only.write(hashes_of(PAGES))
        (victim,) = tmp_path.rglob(f"{hashes_of(PAGES)[0]}*")
        victim.write_bytes(victim.read_bytes()[:-1])
        assert not any(only.read(hashes_of(PAGES)))

        only.fill(PAGES)
        assert all(only.write(hashes_of(PAGES)))

        assert all(only.read(hashes_of(PAGES)))


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
@pytest.mark.parametrize("shape", [GQA, LATENT], ids=["mha", "mla"])
def test_copying_interface_stores_the_same_objects(shape: KVShape, layout: str, tmp_path: Path) -> None:
    if shape.is_mla and layout == "page_head":
        layout = "page_first"
    with ranks("tp1", layout, tmp_path, shape) as (only,):
        only.fill(PAGES)
        pages = [only.pool.get_data_page(page * only.pool.page_size).clone() for page in range(PAGES)]
        assert only.storage.batch_set(hashes_of(PAGES), pages)
        assert only.read(hashes_of(PAGES)) == [True] * PAGES
        assert all(only.holds(page, at) for page, at in enumerate(only.places(PAGES)))

        empty = [only.pool.get_dummy_flat_data_page() for _ in range(PAGES)]
        found = only.storage.batch_get(hashes_of(PAGES), empty)

        assert list(map(bytes_of, found)) == list(map(bytes_of, pages))


def test_copying_interface_of_one_page(tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path) as (only,):
        only.fill(1)
        (page_hash,) = hashes_of(1)
        page = only.pool.get_data_page(0)

        assert only.storage.get(page_hash) is None
        assert only.storage.set(page_hash, page)
        assert only.storage.exists(page_hash)
        assert bytes_of(only.storage.get(page_hash)) == bytes_of(page)
        assert only.storage.set(page_hash) is False
        assert only.storage.batch_set([page_hash]) is False


def test_missing_pages_of_the_copying_interface_are_none(tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path) as (only,):
        only.fill(2)
        only.write(hashes_of(2))
        empty = [only.pool.get_dummy_flat_data_page() for _ in range(3)]

        found = only.storage.batch_get(hashes_of(3), empty)

        assert [one is not None for one in found] == [True, True, False]


@pytest.mark.parametrize(
    "indices",
    [
        torch.arange(16),
        torch.arange(48),
        torch.arange(8, 40),
        torch.arange(32).flip(0),
        torch.cat([torch.arange(16), torch.arange(17, 33)]),
        torch.arange(-32, 0),
        None,
    ],
    ids=["too few", "too many", "between pages", "backwards", "shifted", "negative", "none"],
)
def test_host_slots_that_are_no_pages_move_nothing(indices: torch.Tensor | None, tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path) as (only,):
        assert only.storage.batch_set_v1(hashes_of(2), indices) == [False, False]
        assert only.storage.batch_get_v1(hashes_of(2), indices) == [False, False]
        assert only.storage.batch_exists(hashes_of(2)) == 0
        assert only.storage.counters["adapter_failed.set.LayoutError"] == 1


def test_slots_behind_the_pool_move_nothing(tmp_path: Path) -> None:
    with ranks("tp1", "page_first_direct", tmp_path) as (only,):
        beyond = torch.arange(only.pool.size, only.pool.size + 16)

        assert only.storage.batch_set_v1(hashes_of(1), beyond) == [False]
        assert only.storage.batch_get_v1(hashes_of(1), beyond) == [False]


def test_malformed_hashes_are_misses(tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path) as (only,):
        assert only.storage.batch_exists(["../../etc/passwd"]) == 0
        assert only.write(["short"]) == [False]
        assert only.read(["short"]) == [False]


@pytest.mark.parametrize("fault", [StoreUnavailable("down"), RuntimeError("a bug"), ValueError("another"), OSError(5)])
def test_failing_store_never_raises_into_the_engine(fault: Exception, tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path) as (only,):
        only.fill(2)
        with (
            mock.patch.object(FileStore, "read_many", side_effect=fault),
            mock.patch.object(FileStore, "write_many", side_effect=fault),
            mock.patch.object(FileStore, "exists_many", side_effect=fault),
            mock.patch.object(FileStore, "list_keys", side_effect=fault),
        ):
            assert only.storage.batch_exists(hashes_of(2)) == 0
            assert only.write(hashes_of(2)) == [False, False]
            assert only.read(hashes_of(2)) == [False, False]
            only.storage.clear()

        assert sum(only.storage.counters.snapshot().values()) > 0
        only.fill(2)
        assert only.write(hashes_of(2)) == [True, True]


def test_fault_of_the_adapter_itself_never_raises_into_the_engine(tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path) as (only,):
        with mock.patch.object(ArrangedPages, "_gather", side_effect=RuntimeError("a bug")):
            assert only.write(hashes_of(2)) == [False, False]
        with mock.patch.object(ArrangedPages, "read", side_effect=KeyError("a bug")):
            assert only.read(hashes_of(2)) == [False, False]

        assert only.storage.counters["adapter_failed.set.RuntimeError"] == 1
        assert only.storage.counters["adapter_failed.get.KeyError"] == 1


def test_unregistered_backend_finds_nothing(tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path) as (only,):
        only.storage._anchor = None

        assert only.storage.batch_exists(hashes_of(1)) == 0
        assert only.read(hashes_of(1)) == [False]


def test_closed_backend_finds_and_stores_nothing(tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path) as (only,):
        only.fill(1)
        only.storage.close()
        only.storage.close()

        assert only.write(hashes_of(1)) == [False]
        assert only.read(hashes_of(1)) == [False]
        assert only.storage.batch_exists(hashes_of(1)) == 0


def test_closing_leaves_no_thread_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())

    for _ in range(3):
        with ranks("tp1", "page_first", tmp_path) as (only,):
            only.fill(PAGES)
            only.write(hashes_of(PAGES))
            only.read(hashes_of(PAGES))

    assert set(threading.enumerate()) - before == set()


def test_clear_empties_this_namespace_alone(tmp_path: Path) -> None:
    with (
        ranks("tp1", "page_first", tmp_path) as (mine,),
        ranks("tp1", "page_first", tmp_path, model_id="x") as (other,),
    ):
        for one in (mine, other):
            one.fill(2)
            one.write(hashes_of(2))

        mine.storage.clear()

        assert mine.storage.batch_exists(hashes_of(2)) == 0
        assert other.storage.batch_exists(hashes_of(2)) == 2


def test_statistics_are_those_since_they_were_last_taken(tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path) as (only,):
        only.fill(PAGES)
        only.write(hashes_of(PAGES))
        only.read(hashes_of(PAGES))

        first, second = only.storage.get_stats(), only.storage.get_stats()

    assert isinstance(first, StorageMetrics)
    assert (first.backup_pgs, first.prefetch_pgs) == ([PAGES], [PAGES])
    assert len(first.backup_bandwidth) == len(first.prefetch_bandwidth) == 1
    assert second == StorageMetrics()


def test_reads_and_writes_of_two_threads_do_not_mix(tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path, scratch_nbytes=1 << 18) as (only,):
        only.fill(PAGES)
        only.write(hashes_of(PAGES))
        others = page_hashes(range(1000, 1000 + PAGES * 16), page_tokens=16)
        slots = slots_of(only.pool, only.places(PAGES))
        written: list[bool] = []

        def write() -> None:
            for _ in range(20):
                written.extend(only.storage.batch_set_v1(others, slots_of(only.pool, list(range(PAGES)))))
                only.storage.clear()

        thread = threading.Thread(target=write)
        thread.start()
        while thread.is_alive():
            found = only.storage.batch_get_v1(hashes_of(PAGES), slots)
            assert all(only.holds(page, at) for page, at in enumerate(only.places(PAGES)) if found[page])
        thread.join()

    assert len(written) == 20 * PAGES


def test_prefix_that_the_store_lost_keeps_its_continuation_out(tmp_path: Path) -> None:
    with ranks("tp1", "page_first_direct", tmp_path) as (only,):
        only.fill(4)
        hashes = hashes_of(4)
        assert only.write(hashes[:2]) == [True, True]
        for path in tmp_path.rglob(f"{hashes[1]}*"):
            path.unlink()

        assert only.write(hashes[2:], prefix=hashes[:2]) == [False, False]

        assert not list(tmp_path.rglob(f"{hashes[2]}*"))


def test_ranks_that_hold_copies_write_once(tmp_path: Path) -> None:
    with ranks("tp8", "page_first", tmp_path, total_kv_heads=4) as all_ranks:
        for one in all_ranks:
            one.fill(2)
            assert one.write(hashes_of(2)) == [True, True]
        stored = [one.storage.counters["objects_stored"] for one in all_ranks]

    assert stored == [2, 0] * 4


def test_layers_around_the_store_are_those_of_the_options(tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path, middleware={"write_budget_nbytes": 1}) as (only,):
        only.fill(1)

        assert only.write(hashes_of(1)) == [False]
