"""What a caller asks for and cannot mean is refused before any I/O."""

from __future__ import annotations

import pytest

from hicache_storage.errors import LayoutError
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from tests.engine_integration.page_store.coded import Deployment, poisoned_pages, views
from tests.engine_integration.page_store.test_faults import GRID, HASHES, ONE_RANK, SHAPE


@pytest.mark.parametrize(
    ("hashes", "page", "message"),
    [
        (["../etc/passwd"], None, "page hash"),
        ([HASHES[0].upper()], None, "page hash"),
        ([HASHES[0]], memoryview(bytearray(10)), "10 bytes"),
        ([HASHES[0], HASHES[1]], None, "2 page hashes for 1 pages"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_io(hashes: list[str], page: memoryview | None, message: str) -> None:
    deployment = Deployment(MemoryStore(MemoryOptions()), SHAPE, GRID, ONE_RANK)
    client = deployment.client()
    pages = [page if page is not None else memoryview(bytearray(client.layout.page_nbytes))]

    with pytest.raises(LayoutError, match=message):
        client.read_pages(hashes, pages)
    with pytest.raises(LayoutError, match=message):
        client.write_pages(hashes, pages)


def test_prefix_that_is_no_list_of_page_hashes_is_refused() -> None:
    client = Deployment(MemoryStore(MemoryOptions()), SHAPE, GRID, ONE_RANK).client()
    pages = views(poisoned_pages(client.layout, 1))

    with pytest.raises(LayoutError, match="page hash"):
        client.read_pages(HASHES[1:2], pages, prefix=["../etc/passwd"])
    with pytest.raises(LayoutError, match="page hash"):
        client.write_pages(HASHES[1:2], pages, prefix=["../etc/passwd"])


def test_read_only_page_buffer_is_refused() -> None:
    client = Deployment(MemoryStore(MemoryOptions()), SHAPE, GRID, ONE_RANK).client()

    with pytest.raises(LayoutError, match="read-only"):
        client.read_pages(HASHES[:1], [memoryview(bytes(client.layout.page_nbytes))])


def test_client_that_only_reads_refuses_to_write() -> None:
    client = Deployment(MemoryStore(MemoryOptions()), SHAPE, GRID, ONE_RANK).client(read_only=True)

    with pytest.raises(LayoutError, match="reads only"):
        client.write_pages(HASHES[:1], [memoryview(bytes(client.layout.page_nbytes))])
