"""A request between its arrival and its end, and the pages it holds. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, unique

from hicache_storage.engine_integration.controller.pools import LoadJob
from hicache_storage.engine_integration.radix import Key, Node
from hicache_storage.engine_integration.store_tier.prefetch import Fetch


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Tokens of a prompt that need not be computed, by the tier that had them when it was asked."""

    device: int = 0
    host: int = 0
    store: int = 0

    @property
    def total(self) -> int:
        return self.device + self.host + self.store


@dataclass(frozen=True, slots=True)
class Admission:
    """What a request starts with.

    Attributes:
        pages: device pages of its cached prefix, in order; the tree's, locked for the request.
        cached: where they come from; ``cached.total`` is the first token to compute.
        loads: before reading layer l of *pages*, wait for layer l of each of these. The wait raises where the bytes
            will never come, which may be on one rank alone: ranks that compute together must agree on it, abort the
            request everywhere and let it arrive again.
    """

    pages: Sequence[int]
    cached: CachedTokens
    loads: tuple[LoadJob, ...]


@unique
class FetchState(Enum):
    """Where a request's prefetch is. Every state but DONE holds budget; READING also holds host pages."""

    PROBING = "asking L3"
    READING = "reading"
    DONE = "done"


@dataclass(slots=True, eq=False)
class RequestFetch:
    """A request's prefetch: pages ``[first_page, key.num_pages)`` of *key*.

    Attributes:
        reserved: pages it counts for in the budget.
        host_pages: the pages being filled; the first *inserted* of them were given to the tree.
        arrived: pages of it that the tree took from it.
        anchor: node that is locked on the host so that the fetched pages have something to follow.
        deadline_s: when a waiting request goes on without; None before it waits, or if it has all the time.
    """

    key: Key
    first_page: int
    fetch: Fetch
    reserved: int
    anchor: Node | None
    state: FetchState = FetchState.PROBING
    host_pages: list[int] = field(default_factory=list)
    inserted: int = 0
    arrived: int = 0
    deadline_s: float | None = None

    @property
    def is_done(self) -> bool:
        return self.state is FetchState.DONE


@dataclass(slots=True, eq=False)
class Request:
    """What the controller knows of a request.

        pages:  [ the tree's, locked by `node` | the request's own )
                  0                  num_shared           len(pages)

    Attributes:
        key: the pages of its prompt that may come from a cache.
        fetch: its prefetch, None if L3 was not asked.
        node: last node of the shared pages, locked on the device; None before admission.
    """

    request_id: str
    key: Key
    priority: int = 0
    fetch: RequestFetch | None = None
    node: Node | None = None
    pages: list[int] = field(default_factory=list)
    num_shared: int = 0

    @property
    def own_pages(self) -> list[int]:
        return self.pages[self.num_shared :]
