"""Pools whose pages mean nothing here: recurrent state, index keys, and whatever SGLang adds. Bytes as SGLang hands them out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hicache_storage.engine_integration.adapters.sglang.host_pool import HostPool
from hicache_storage.engine_integration.adapters.sglang.pages import flat_bytes
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.errors import LayoutError
from hicache_storage.types import MISS, Outcome


class OpaquePages:
    """Pages that SGLang copies out of its pool and into it.

    Attributes:
        page_nbytes: of every page.

    Raises:
        LayoutError: the pool hands out no pages.
    """

    def __init__(self, pool: HostPool, scratch_nbytes: int) -> None:
        try:
            sample = pool.get_data_page(0, flat=True)
        except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
            raise LayoutError(f"a {type(pool).__name__} of layout {pool.layout} hands out no pages: {error}") from error
        self._pool = pool
        self._dtype = sample.dtype
        self.page_nbytes = sample.nbytes
        if not self.page_nbytes:
            raise LayoutError(f"a {type(pool).__name__} of layout {pool.layout} has pages of no bytes")
        self._rows = max(1, scratch_nbytes // self.page_nbytes)

    def memory(self) -> list[memoryview]:
        return []

    def read(
        self, client: PageStore, hashes: Sequence[str], slots: Sequence[int], prefix: Sequence[str]
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for start in range(0, len(hashes), self._rows):
            some = hashes[start : start + self._rows]
            # One by one, so that each begins where any type may begin.
            pages = [torch.empty(self.page_nbytes, dtype=torch.uint8) for _ in some]
            found = client.read_pages(some, list(map(flat_bytes, pages)), prefix=[*prefix, *hashes[:start]])
            outcomes += found
            for slot, page, outcome in zip(slots[start : start + self._rows], pages, found, strict=True):
                if outcome:
                    self._pool.set_from_flat_data_page(slot, page.view(self._dtype))
            if not all(found):
                break
        return outcomes + [MISS] * (len(hashes) - len(outcomes))

    def write(
        self, client: PageStore, hashes: Sequence[str], slots: Sequence[int], prefix: Sequence[str]
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for start in range(0, len(hashes), self._rows):
            some = hashes[start : start + self._rows]
            pages = [
                self._pool.get_data_page(slot, flat=True).contiguous() for slot in slots[start : start + len(some)]
            ]
            outcomes += client.write_pages(some, list(map(flat_bytes, pages)), prefix=[*prefix, *hashes[:start]])
            if not all(outcomes):
                break
        return outcomes + outcomes[-1:] * (len(hashes) - len(outcomes))
