"""The L3 client: pages of one rank, in page_unified order, to and from any object store.

Everything odd (short, long, corrupt, foreign, unreadable, late, a bug in a backend) is a miss for its page
alone, counted by cause. What is stored of a prefix is a prefix, and where the store evicts by use, what it
evicts of a prefix is its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hicache_storage import telemetry
from hicache_storage.engine_integration.page_store.descriptor import Descriptor
from hicache_storage.engine_integration.page_store.guarded import GuardedStore
from hicache_storage.engine_integration.page_store.memory import Page, ScatteredPage
from hicache_storage.engine_integration.page_store.namespace_guard import NamespaceGuard
from hicache_storage.engine_integration.page_store.outcomes import leading_successes
from hicache_storage.engine_integration.page_store.reading import PageReader, ReadStep
from hicache_storage.engine_integration.page_store.recency import Recency
from hicache_storage.engine_integration.page_store.writing import PageWriter
from hicache_storage.errors import LayoutError, Unsupported
from hicache_storage.layout import Namespace, ObjectKey, ShardLayout, check_page_hashes, plan_reads, plan_writes
from hicache_storage.store import ObjectStore
from hicache_storage.telemetry import Counters
from hicache_storage.types import HIT, Outcome, Status, failed

_LOOKUP_PAGES = 128
_DELETE_OBJECTS = 1024


class PageStore:
    """Pages of one rank's shard in an object store. Thread-safe; does not own the store.

    Every method blocks the calling thread for the time of its I/O; parallelism comes from the
    store's own batches.

    A call may concern pages in the middle of a request. Its ``prefix``, the hashes of the pages in front of
    them from the request's first one on, then says what they depend on: the prefix counts as used too, so that
    a store does not evict it first. Without it a capacity may leave pages that nobody can reach.

    Args:
        store: where the objects live.
        namespace: what makes the pages interchangeable; must name the grid of *layout*.
        layout: what this rank holds of a page and in which order.
        read_only: this rank never writes: it is not the elected writer of its shard, or its shard
            is finer than the grid.
        counters: where to count; None makes new ones.

    Raises:
        LayoutError: a writer's shard is not made of whole chunks, or namespace and layout disagree.
    """

    def __init__(
        self,
        store: ObjectStore,
        namespace: Namespace,
        layout: ShardLayout,
        *,
        read_only: bool = False,
        counters: Counters | None = None,
    ) -> None:
        _check_namespace(namespace, layout)
        self.layout = layout
        self.counters = counters if counters is not None else Counters()
        self._store = GuardedStore(store, self.counters)
        self._digest = namespace.digest
        self._steps = [ReadStep.of(plan) for plan in plan_reads(layout)]
        self._tails = [f"_{self._digest}_{step.suffix}" for step in self._steps]
        self._guard = NamespaceGuard(self._store, Descriptor.of(namespace, layout.shape))
        self._recency = Recency(self._store, self._tails, self._guard.key)
        self._reader = PageReader(self._store, self._guard, self._steps, self._digest)
        self._writer: PageWriter | None = None
        if not read_only:
            self._writer = PageWriter(self._store, self._recency, plan_writes(layout), self._digest)

    @property
    def objects_per_page(self) -> int:
        """How many objects this rank reads for one page."""
        return len(self._steps)

    @property
    def reads_in_place(self) -> bool:
        """Whether what is read goes straight into the page: its groups and layers are those of the objects."""
        return not any(step.plan.copies for step in self._steps)

    @property
    def object_nbytes_per_page(self) -> int:
        """Bytes that this rank fetches for one page, trailers included."""
        return sum(step.plan.nbytes + step.trailer_nbytes for step in self._steps)

    def lookup_prefix(self, page_hashes: Sequence[str]) -> int:
        """Return how many leading pages have all the objects that this rank needs.

        A later read may still miss: objects can vanish meanwhile, and only reading verifies them.
        What could not be found out counts as not there. Looking is no use: what a store evicts first does
        not change, and so neither does that it is the end of a prefix. Does not raise for a failing store.

        Raises:
            LayoutError: a page hash is malformed.
        """
        check_page_hashes(page_hashes)
        if self._guard.refusal() is not None:
            return 0
        tails = self._tails
        for start in range(0, len(page_hashes), _LOOKUP_PAGES):
            keys = [page_hash + tail for page_hash in page_hashes[start : start + _LOOKUP_PAGES] for tail in tails]
            outcomes = self._store.exists_many(keys)
            if outcomes.count(HIT) == len(outcomes):
                continue
            first = leading_successes(outcomes)
            if first < len(outcomes):
                self._store.count_failure(telemetry.LOOKUP_FAILED, outcomes[first])
                return start + first // len(tails)
        return len(page_hashes)

    def present_pages(self, page_hashes: Sequence[str]) -> list[bool]:
        """Say for each page whether all the objects that this rank needs are there, in whatever order they are stored.

        What could not be found out counts as not there. Does not raise for a failing store.

        Raises:
            LayoutError: a page hash is malformed.
        """
        check_page_hashes(page_hashes)
        if self._guard.refusal() is not None:
            return [False] * len(page_hashes)
        step = len(self._tails)
        present: list[bool] = []
        for start in range(0, len(page_hashes), _LOOKUP_PAGES):
            some = page_hashes[start : start + _LOOKUP_PAGES]
            outcomes = self._store.exists_many([page_hash + tail for page_hash in some for tail in self._tails])
            for outcome in outcomes:
                self._store.count_failure(telemetry.LOOKUP_FAILED, outcome)
            present += [all(outcomes[page * step : (page + 1) * step]) for page in range(len(some))]
        return present

    def read_pages(
        self, page_hashes: Sequence[str], pages: Sequence[Page], *, prefix: Sequence[str] = ()
    ) -> list[Outcome]:
        """Fill *pages* with verified bytes; one outcome per page, in order.

        ``HIT``: every byte is as it was written. ``MISS`` or a failure: the page's content is
        undefined and it must be recomputed. Damaged objects are taken out of use, so that the next
        write of the page heals it. Does not raise for a failing store.

        Cost: on a store that evicts by use, one touch for each object, those of *prefix* included.

        Args:
            page_hashes: one hash per page.
            pages: writable flat bytes of `ShardLayout.page_nbytes` each, in page_unified order. A `ScatteredPage`
                may be read where `reads_in_place`.
            prefix: hashes of the pages in front, from the request's first one on.

        Raises:
            LayoutError: a hash or a buffer does not fit.
        """
        self._check_pages(page_hashes, pages, prefix, writable=True)
        refusal = self._guard.refusal()
        if refusal is not None:
            return [failed(refusal)] * len(page_hashes)
        outcomes = self._reader.read(page_hashes, pages)
        hits = leading_successes(outcomes)
        if hits:
            self._recency.refresh([*prefix, *page_hashes[:hits]])
        self._count_pages(outcomes)
        return outcomes

    def write_pages(
        self, page_hashes: Sequence[str], pages: Sequence[Page], *, prefix: Sequence[str] = ()
    ) -> list[Outcome]:
        """Store *pages*; one outcome per page, in order: ``STORED``, ``ALREADY_THERE`` or a failure.

        A page is ``STORED`` if at least one of its objects was not there before and none failed. Pages go
        to the store in order, and none is stored behind one that is not: from the first failure on every
        outcome is one. Does not raise for a failing store.

        Cost: on a store that evicts by use, 1.3 touches for each object, those of *prefix* included.

        Args:
            page_hashes: one hash per page, in the order of the request.
            pages: flat bytes of `ShardLayout.page_nbytes` each, in page_unified order; unchanged
                until this returns.
            prefix: hashes of the pages in front, from the request's first one on. If the last of them is
                not there, nothing is stored.

        Raises:
            LayoutError: this client is read-only, or a hash or a buffer does not fit.
        """
        if self._writer is None:
            raise LayoutError(
                "this rank reads only: another rank is the elected writer, or its shard has no grid cells"
            )
        self._check_pages(page_hashes, pages, prefix, writable=False)
        refusal = self._guard.refusal() or self._guard.describe()
        if refusal is not None:
            return [failed(refusal)] * len(page_hashes)
        outcomes, left_out = self._writer.write(page_hashes, pages, prefix)
        if any(outcomes):
            self._guard.confirm_description()
        self._count_pages(outcomes)
        return outcomes + left_out

    def clear(self) -> int:
        """Delete every object of this namespace and nothing else; return how many there were.

        The description goes first. So whatever another client stores meanwhile is either deleted with the rest,
        or stored by a write that ends later and leaves the description again.

        Raises:
            StoreError: the store cannot list, or listing or deleting failed; what could be deleted is gone all the same.
        """
        store = self._store.bare
        if not store.capabilities.listing:
            raise Unsupported("this store cannot list what there is to delete", backend=store.name, op="list")
        store.delete(self._guard.key)
        self._guard.forget()
        mine = [info.key for info in store.list_keys("") if _digest_of(info.key) == self._digest]
        outcomes: list[Outcome] = []
        for start in range(0, len(mine), _DELETE_OBJECTS):
            outcomes += self._store.delete_many(mine[start : start + _DELETE_OBJECTS])
        failure = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        if failure is not None:
            raise failure
        return sum(map(bool, outcomes))

    def _count_pages(self, outcomes: Sequence[Outcome]) -> None:
        by_status = Counter(outcome.status for outcome in outcomes)
        for status, pages in by_status.items():
            self.counters.add(_PAGE_COUNTERS[status], pages)
        hits = by_status[Status.HIT]
        self.counters.add(telemetry.OBJECTS_READ, hits * len(self._steps))
        self.counters.add(telemetry.NBYTES_READ, hits * self.object_nbytes_per_page)

    def _check_pages(
        self, page_hashes: Sequence[str], pages: Sequence[Page], prefix: Sequence[str], *, writable: bool
    ) -> None:
        if len(page_hashes) != len(pages):
            raise LayoutError(f"{len(page_hashes)} page hashes for {len(pages)} pages")
        check_page_hashes(prefix)
        check_page_hashes(page_hashes)
        for page in pages:
            self._check_page(page, writable=writable)

    def _check_page(self, page: Page, *, writable: bool) -> None:
        if isinstance(page, ScatteredPage):
            if writable and not self.reads_in_place:
                raise LayoutError("a page in several runs cannot be read here: its objects hold other head groups")
        elif not isinstance(page, memoryview):
            raise LayoutError(f"page buffer is a {type(page).__name__}: expected a memoryview of flat bytes")
        elif page.format != "B" or page.ndim != 1:
            raise LayoutError(f"page buffer in format {page.format!r}: pages are flat bytes ('B')")
        if page.nbytes != self.layout.page_nbytes:
            raise LayoutError(
                f"page buffer of {page.nbytes} bytes: this rank's pages are {self.layout.page_nbytes} flat bytes"
            )
        if writable and page.readonly:
            raise LayoutError("page buffer is read-only")


_PAGE_COUNTERS = {
    Status.HIT: telemetry.PAGES_HIT,
    Status.MISS: telemetry.PAGES_MISSED,
    Status.FAILED: telemetry.PAGES_FAILED,
    Status.STORED: telemetry.PAGES_STORED,
    Status.ALREADY_THERE: telemetry.PAGES_ALREADY_THERE,
}


def _digest_of(key: str) -> str | None:
    try:
        return ObjectKey.parse(key).namespace_digest
    except LayoutError:
        return None


def _check_namespace(namespace: Namespace, layout: ShardLayout) -> None:
    expected = Namespace.of(
        model_id=namespace.model_id, shape=layout.shape, grid=layout.grid, variant=namespace.variant
    )
    mine, theirs = namespace.encoded_fields(), expected.encoded_fields()
    differing = [f"{name} is {mine[name]!r} and {theirs[name]!r}" for name in theirs if mine[name] != theirs[name]]
    if differing:
        raise LayoutError(f"namespace and layout disagree: {', '.join(differing)}")
