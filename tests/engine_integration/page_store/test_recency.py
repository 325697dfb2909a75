"""How often the objects of a prefix are touched."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hicache_storage.layout import Grid, KVShape, Topology
from hicache_storage.types import Outcome
from tests.engine_integration.page_store.coded import Deployment, coded_page, hashes_of, views
from tests.engine_integration.page_store.evicting import LeastRecentlyUsed

SHAPE = KVShape.mha(num_layers=2, num_kv_heads=2, head_dim=16, dtype="float32", page_tokens=16)
PER_PAGE = 4
FIRST_PAGES = 2
"""How many pages a call writes before it looks whether they stay."""


class Touched(LeastRecentlyUsed):
    """Counts the objects that are touched; none is ever evicted."""

    def __init__(self) -> None:
        super().__init__(10_000)
        self.touches = 0

    def touch_many(self, keys: Sequence[str]) -> list[Outcome]:
        self.touches += len(keys)
        return super().touch_many(keys)


def touches_of_a_write(pages: int) -> int:
    store = Touched()
    client = Deployment(store, SHAPE, Grid(1, 1), Topology(1, 1)).client()
    contents = [coded_page(client.layout, page) for page in range(pages)]

    assert all(client.write_pages(hashes_of(pages, SHAPE.page_tokens), views(contents)))

    return store.touches


@pytest.mark.parametrize("pages", [1, 2, 3, 6])
def test_a_call_of_few_pages_touches_each_object_once(pages: int) -> None:
    descriptions = 1

    assert touches_of_a_write(pages) == pages * PER_PAGE + descriptions


@pytest.mark.parametrize("pages", [7, 14, 16])
def test_pages_are_not_touched_right_before_the_touch_of_all_that_ends_the_call(pages: int) -> None:
    descriptions = 2

    assert touches_of_a_write(pages) == (FIRST_PAGES + pages) * PER_PAGE + descriptions
