"""One logical page in L3: the anchor's part and its companions', each a namespace of its own.

Host pages are logical ids; every part says where the bytes of an id lie in its own host pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hicache_storage.types import Outcome, Status


class PageClient(Protocol):
    """What is used of `PageStore`; a store's failures are misses here, never exceptions."""

    def lookup_prefix(self, page_hashes: Sequence[str]) -> int: ...

    def read_pages(
        self, page_hashes: Sequence[str], pages: Sequence[memoryview], *, prefix: Sequence[str] = ()
    ) -> list[Outcome]: ...

    def write_pages(
        self, page_hashes: Sequence[str], pages: Sequence[memoryview], *, prefix: Sequence[str] = ()
    ) -> list[Outcome]: ...

    def clear(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Part:
    """One pool's share of every page.

    Attributes:
        name: component, such as ``kv`` or ``draft``.
        client: where the part's objects are.
        page: gives the bytes of a host page, `ShardLayout.page_nbytes` of them.
        writes: this rank is the elected writer of its shard. Others read only.
    """

    name: str
    client: PageClient
    page: Callable[[int], memoryview]
    writes: bool = True


class PageGroup:
    """The anchor and its companions as one: a page counts only if every part of it does.

    Args:
        anchor: the KV of the target model.
        companions: parts that must be there for every page of a prefix.
    """

    def __init__(self, anchor: Part, companions: Sequence[Part] = ()) -> None:
        self._parts = (anchor, *companions)

    def lookup(self, page_hashes: Sequence[str]) -> int:
        """Return how many leading pages have all parts, as far as can be found out."""
        found = len(page_hashes)
        for part in self._parts:
            found = part.client.lookup_prefix(page_hashes[:found])
        return found

    def read(self, page_hashes: Sequence[str], host_pages: Sequence[int], prefix: Sequence[str] = ()) -> int:
        """Fill *host_pages* of every part; return how many leading pages are there in whole, verified.

        The content of the others is undefined.

        Args:
            prefix: pages in front that were used with them, so that a store that evicts by use keeps them longest.
        """
        usable = len(page_hashes)
        for part in self._parts:
            views = [part.page(page) for page in host_pages[:usable]]
            usable = _leading(part.client.read_pages(page_hashes[:usable], views, prefix=prefix))
        return usable

    def clear(self) -> int:
        """Delete every object of every part's namespace, other ranks' included; return how many that were.

        Raises:
            StoreError: as `PageStore.clear`.
        """
        return sum(part.client.clear() for part in self._parts)

    def write(self, page_hashes: Sequence[str], host_pages: Sequence[int], prefix: Sequence[str] = ()) -> int:
        """Store *host_pages*; return how many leading pages are in the store in whole, as far as this rank writes them.

        Companions go first: a page whose anchor is there has them.

        Args:
            prefix: pages in front, from the sequence's first one on. Where the last of them is gone, nothing is stored.
        """
        stored = len(page_hashes)
        for part in reversed(self._parts):
            if part.writes:
                views = [part.page(page) for page in host_pages[:stored]]
                stored = _leading(part.client.write_pages(page_hashes[:stored], views, prefix=prefix))
        return stored


def _leading(outcomes: Sequence[Outcome]) -> int:
    """Return how many leading outcomes are neither a miss nor a failure."""
    unusable = (Status.MISS, Status.FAILED)
    return next((index for index, outcome in enumerate(outcomes) if outcome.status in unusable), len(outcomes))
