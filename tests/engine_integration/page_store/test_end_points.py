"""F11: what a request may use is the greatest end point that is legal for every part of its pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.engine_integration.page_store.end_points import (
    all_pages_end_points,
    greatest_common_end_point,
    trailing_pages_end_points,
)
from hicache_storage.errors import LayoutError
from hicache_storage.layout import Grid, KVShape, Namespace, ShardLayout, Topology, Variant
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from tests.engine_integration.page_store.coded import coded_page, hashes_of, poisoned_pages, views

PAGES = 6
PRESENCE = st.lists(st.booleans(), max_size=12)


@pytest.mark.parametrize(
    ("parts", "usable"),
    [
        ([{3}, {2}], 0),
        ([{1, 3}, {1, 2}], 1),
        ([{1, 2, 3}, {3}], 3),
        ([range(1, 7), [2, 5], {5, 6}], 5),
        ([{4}], 4),
        ([set(), {1, 2}], 0),
        ([], 0),
    ],
    ids=str,
)
def test_what_is_usable_is_the_greatest_end_point_of_all_parts(parts: list[set[int]], usable: int) -> None:
    assert greatest_common_end_point(parts) == usable


@given(st.lists(st.sets(st.integers(1, 12)), min_size=1, max_size=4))
def test_usable_end_point_is_legal_for_all_and_no_greater_one_is(parts: list[set[int]]) -> None:
    legal = [stop for stop in range(1, 13) if all(stop in part for part in parts)]

    assert greatest_common_end_point(parts) == max(legal, default=0)


@given(PRESENCE)
def test_part_that_needs_all_pages_ends_before_its_first_gap(present: list[bool]) -> None:
    legal = [stop for stop in range(1, len(present) + 1) if all(present[:stop])]

    assert list(all_pages_end_points(present)) == legal


@given(PRESENCE, st.integers(1, 14))
def test_part_that_needs_its_last_pages_may_end_behind_any_such_run(present: list[bool], window: int) -> None:
    legal = [stop for stop in range(1, len(present) + 1) if all(present[max(0, stop - window) : stop])]

    assert trailing_pages_end_points(present, window) == legal


@pytest.mark.parametrize("window", [0, -1])
def test_window_without_a_page_is_refused(window: int) -> None:
    with pytest.raises(LayoutError, match="window_pages"):
        trailing_pages_end_points([True], window)


def test_page_whose_companion_vanishes_after_the_lookup_ends_what_is_usable() -> None:
    store = MemoryStore(MemoryOptions())
    shape = KVShape.mha(num_layers=2, num_kv_heads=2, head_dim=16, dtype="float32", page_tokens=16)
    grid, topology = Grid(2, 2), Topology(1, 1)
    layout = ShardLayout(shape, grid, topology.shard(shape, tp_rank=0, pp_rank=0))
    hashes = hashes_of(PAGES, shape.page_tokens)
    namespaces = [
        Namespace.of(model_id="m", shape=shape, grid=grid, variant=Variant(component=component))
        for component in ("kv", "draft")
    ]
    parts = [PageStore(store, namespace, layout) for namespace in namespaces]
    for part in parts:
        assert all(part.write_pages(hashes, views([coded_page(layout, page) for page in range(PAGES)])))
    assert [part.lookup_prefix(hashes) for part in parts] == [PAGES, PAGES]
    assert store.delete(f"{hashes[4]}_{namespaces[1].digest}_L0-2_H0")

    read = [part.read_pages(hashes, views(poisoned_pages(layout, PAGES))) for part in parts]

    present = [[bool(outcome) for outcome in outcomes] for outcomes in read]
    assert greatest_common_end_point([all_pages_end_points(part) for part in present]) == 4
    assert greatest_common_end_point([all_pages_end_points(present[0]), trailing_pages_end_points(present[1], 1)]) == 6
