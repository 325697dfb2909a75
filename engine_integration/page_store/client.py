"""The L3 client: pages of one rank, in page_unified order, to and from any object store.

This is the one file in which a store's failure becomes a miss. Everything odd (short, long, corrupt,
foreign, unreadable, late, a bug in a backend) is a miss for its page alone, counted by cause.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import TypeVar

from hicache_storage import telemetry
from hicache_storage.batches import LazySequence
from hicache_storage.engine_integration.page_store.descriptor import Descriptor, read_descriptor
from hicache_storage.engine_integration.page_store.reading import ObjectRead, ReadBatch, ReadStep
from hicache_storage.errors import CorruptObject, LayoutError, RangeError, StoreError, Unsupported
from hicache_storage.layout import (
    ChunkWrite,
    Namespace,
    ObjectKey,
    ShardLayout,
    TrailerMaker,
    check_page_hashes,
    object_key,
    plan_reads,
    plan_writes,
)
from hicache_storage.store import ObjectStore
from hicache_storage.telemetry import Counters, RareWarnings
from hicache_storage.types import ALREADY_THERE, HIT, STORED, ObjectWrite, Outcome, Status, failed

T = TypeVar("T")

_log = logging.getLogger(__name__)

_DAMAGE = (CorruptObject, RangeError)
_LOOKUP_PAGES = 128
_BATCH_OBJECTS = 1024


class PageStore:
    """Pages of one rank's shard in an object store. Thread-safe; does not own the store.

    Every method blocks the calling thread for the time of its I/O; parallelism comes from the
    store's own batches.

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
        self._store = store
        self._digest = namespace.digest
        self._descriptor = Descriptor.of(namespace, layout.shape)
        self._reads = [ReadStep.of(plan) for plan in plan_reads(layout)]
        self._writes: list[ChunkWrite] | None = None if read_only else plan_writes(layout)
        self._warnings = RareWarnings(_log)
        self._admitted = False

    @property
    def objects_per_page(self) -> int:
        """How many objects this rank reads for one page."""
        return len(self._reads)

    @property
    def object_nbytes_per_page(self) -> int:
        """Bytes that this rank fetches for one page, trailers included."""
        return sum(step.plan.nbytes + step.trailer_nbytes for step in self._reads)

    def lookup_prefix(self, page_hashes: Sequence[str]) -> int:
        """Return how many leading pages have all the objects that this rank needs.

        A later read may still miss: objects can vanish meanwhile, and only reading verifies them.
        What could not be found out counts as not there. Does not raise for a failing store.

        Raises:
            LayoutError: a page hash is malformed.
        """
        check_page_hashes(page_hashes)
        if self._refusal() is not None:
            return 0
        tails = [f"_{self._digest}_{step.suffix}" for step in self._reads]
        for start in range(0, len(page_hashes), _LOOKUP_PAGES):
            keys = [page_hash + tail for page_hash in page_hashes[start : start + _LOOKUP_PAGES] for tail in tails]
            outcomes = self._attempt("exists", len(keys), partial(self._store.exists_many, keys))
            if outcomes.count(HIT) == len(outcomes):
                continue
            first = next((index for index, outcome in enumerate(outcomes) if not outcome), None)
            if first is not None:
                self._count_failure(telemetry.LOOKUP_FAILED, outcomes[first])
                return start + first // len(tails)
        return len(page_hashes)

    def read_pages(self, page_hashes: Sequence[str], pages: Sequence[memoryview]) -> list[Outcome]:
        """Fill *pages* with verified bytes; one outcome per page, in order.

        ``HIT``: every byte is as it was written. ``MISS`` or a failure: the page's content is
        undefined and it must be recomputed. Damaged objects are taken out of use, so that the next
        write of the page heals it. Does not raise for a failing store.

        Args:
            page_hashes: one hash per page.
            pages: writable flat bytes of `ShardLayout.page_nbytes` each, in page_unified order.

        Raises:
            LayoutError: a hash or a buffer does not fit.
        """
        self._check_pages(page_hashes, pages, writable=True)
        refusal = self._refusal()
        if refusal is not None:
            return [failed(refusal)] * len(page_hashes)
        step = max(1, _BATCH_OBJECTS // len(self._reads))
        outcomes: list[Outcome] = []
        for start in range(0, len(page_hashes), step):
            stop = start + step
            outcomes += self._read_batch(page_hashes[start:stop], pages[start:stop])
        self._count_pages(outcomes)
        return outcomes

    def write_pages(self, page_hashes: Sequence[str], pages: Sequence[memoryview]) -> list[Outcome]:
        """Store *pages*; one outcome per page, in order: ``STORED``, ``ALREADY_THERE`` or a failure.

        A page is ``STORED`` if at least one of its objects was not there before and none failed.
        Does not raise for a failing store.

        Args:
            page_hashes: one hash per page.
            pages: flat bytes of `ShardLayout.page_nbytes` each, in page_unified order; unchanged
                until this returns.

        Raises:
            LayoutError: this client is read-only, or a hash or a buffer does not fit.
        """
        if self._writes is None:
            raise LayoutError(
                "this rank reads only: another rank is the elected writer, or its shard has no grid cells"
            )
        self._check_pages(page_hashes, pages, writable=False)
        refusal = self._refusal() or self._describe()
        if refusal is not None:
            return [failed(refusal)] * len(page_hashes)
        step = max(1, _BATCH_OBJECTS // len(self._writes))
        outcomes: list[Outcome] = []
        for start in range(0, len(page_hashes), step):
            stop = start + step
            outcomes += self._write_batch(self._writes, page_hashes[start:stop], pages[start:stop])
        self._count_pages(outcomes)
        return outcomes

    def clear(self) -> int:
        """Delete every object of this namespace and nothing else; return how many there were.

        Raises:
            StoreError: the store cannot list, or listing failed.
        """
        mine = [info.key for info in self._store.list_keys("") if _digest_of(info.key) == self._digest]
        deleted = 0
        for start in range(0, len(mine), _BATCH_OBJECTS):
            deleted += sum(map(bool, self._store.delete_many(mine[start : start + _BATCH_OBJECTS])))
        self._store.delete(self._descriptor.key)
        self._admitted = False
        return deleted

    # -- batches ---------------------------------------------------------------------------

    def _read_batch(self, page_hashes: Sequence[str], pages: Sequence[memoryview]) -> list[Outcome]:
        batch = ReadBatch(self._reads, self._digest, page_hashes, pages)
        requests = batch.requests()
        answers = self._attempt("read", len(requests), lambda: self._store.read_many(requests))
        outcomes = [HIT] * len(page_hashes)
        for page, obj, mine in batch.objects():
            answer = _verified(obj, answers[mine], self._store.name)
            if not answer:
                self._count_failure(telemetry.READ_FAILED, answer)
                self._discard_if_damaged(obj.key, answer)
                outcomes[page] = _worse(outcomes[page], answer)
        return outcomes

    def _write_batch(
        self, plan: Sequence[ChunkWrite], page_hashes: Sequence[str], pages: Sequence[memoryview]
    ) -> list[Outcome]:
        suffixes = [write.chunk.suffix for write in plan]

        def make(index: int) -> ObjectWrite:
            page, position = divmod(index, len(plan))
            write = plan[position]
            key = object_key(page_hashes[page], self._digest, suffixes[position])
            payload = pages[page][write.page_offset : write.page_offset + write.nbytes]
            return ObjectWrite(key, (payload,), TrailerMaker(key, payload, write.block_nbytes))

        writes = LazySequence(len(page_hashes) * len(plan), make)
        answers = self._attempt("write", len(writes), lambda: self._store.write_many(writes))
        outcomes = [ALREADY_THERE] * len(page_hashes)
        stored = stored_nbytes = 0
        for index, answer in enumerate(answers):
            page = index // len(plan)
            if answer.status is Status.FAILED:
                self._count_failure(telemetry.WRITE_FAILED, answer)
                outcomes[page] = _worse(outcomes[page], answer)
            elif answer.status is Status.STORED:
                stored += 1
                stored_nbytes += plan[index % len(plan)].nbytes
                outcomes[page] = _worse(outcomes[page], STORED)
        self.counters.add(telemetry.OBJECTS_STORED, stored)
        self.counters.add(telemetry.NBYTES_STORED, stored_nbytes)
        return outcomes

    def _attempt(self, op: str, expected: int, call: Callable[[], list[Outcome]]) -> list[Outcome]:
        """Return the store's outcomes; whatever goes wrong with the whole batch fails each request of it."""
        try:
            outcomes = call()
        except StoreError as error:
            return [failed(error)] * expected
        except Exception as error:  # noqa: BLE001 - the one place where any fault of a backend becomes a miss
            cause = type(error).__name__
            self._warnings.warn(
                f"{op}.{cause}", "store.unforeseen backend=%s op=%s", self._store.name, op, exc_info=True
            )
            return [failed(StoreError(f"{cause}: {error}", backend=self._store.name, op=op))] * expected
        if len(outcomes) != expected:
            reason = f"{len(outcomes)} outcomes for {expected} requests"
            return [failed(StoreError(reason, backend=self._store.name, op=op))] * expected
        return outcomes

    # -- the namespace ---------------------------------------------------------------------

    def _refusal(self) -> StoreError | None:
        """Return why this deployment must not use the namespace, None if it may.

        Asked until a description was found that matches. While there is none, or the store cannot answer,
        nothing is refused and nothing is discarded.
        """
        if self._admitted:
            return None
        try:
            found = self._guarded("open", lambda: read_descriptor(self._store, self._digest))
        except LayoutError as error:
            self._warnings.warn("descriptor", "namespace.unreadable digest=%s reason=%s", self._digest, error)
            return None
        except StoreError as error:
            self._count_failure(telemetry.LOOKUP_FAILED, failed(error))
            return None
        if found is None:
            return None
        conflict = self._descriptor.conflict(found)
        if conflict is None:
            self._admitted = True
            return None
        self.counters.add(telemetry.NAMESPACE_CONFLICTS)
        self._warnings.warn("conflict", "namespace.conflict %s", conflict)
        return Unsupported(conflict, backend=self._store.name, op="open", key=self._descriptor.key)

    def _describe(self) -> StoreError | None:
        """Leave the namespace's description in the store before its first page; refuse if another's is there."""
        if self._admitted:
            return None
        try:
            self._guarded("write", self._leave_description)
        except StoreError as error:
            self._count_failure(telemetry.WRITE_FAILED, failed(error))
            return error
        return self._refusal()

    def _leave_description(self) -> None:
        try:
            if read_descriptor(self._store, self._digest) is not None:
                return
        except LayoutError:
            self._store.quarantine(self._descriptor.key)
        self._store.write(self._descriptor.key, [self._descriptor.encode()])

    def _guarded(self, op: str, call: Callable[[], T]) -> T:
        """Return what *call* does; a fault that no backend may have becomes a `StoreError`, `LayoutError` passes."""
        try:
            return call()
        except (StoreError, LayoutError):
            raise
        except Exception as error:
            raise self._unforeseen(op, error) from error

    def _unforeseen(self, op: str, error: Exception) -> StoreError:
        cause = type(error).__name__
        self._warnings.warn(f"{op}.{cause}", "store.unforeseen backend=%s op=%s", self._store.name, op, exc_info=True)
        return StoreError(f"{cause}: {error}", backend=self._store.name, op=op)

    # -- bookkeeping -----------------------------------------------------------------------

    def _discard_if_damaged(self, key: str, answer: Outcome) -> None:
        if not isinstance(answer.error, _DAMAGE):
            return
        self._warnings.warn(
            "corrupt", "object.corrupt backend=%s key=%s reason=%s", self._store.name, key, answer.error
        )
        # Until the namespace is confirmed as ours, the damage may be our own wrong idea of the object.
        if not self._admitted:
            return
        try:
            taken = self._guarded("quarantine", lambda: self._store.quarantine(key))
            self.counters.add(telemetry.OBJECTS_QUARANTINED, int(taken))
        except StoreError as error:
            self._count_failure(telemetry.WRITE_FAILED, failed(error))

    def _count_failure(self, what: str, outcome: Outcome) -> None:
        if outcome.error is None:
            return
        self.counters.add(f"{what}.{type(outcome.error).__name__}")
        if not isinstance(outcome.error, _DAMAGE):
            self._warnings.warn(
                f"{what}.{type(outcome.error).__name__}",
                "store.%s backend=%s %s",
                what,
                self._store.name,
                outcome.error,
            )

    def _count_pages(self, outcomes: Sequence[Outcome]) -> None:
        by_status = Counter(outcome.status for outcome in outcomes)
        for status, pages in by_status.items():
            self.counters.add(_PAGE_COUNTERS[status], pages)
        hits = by_status[Status.HIT]
        self.counters.add(telemetry.OBJECTS_READ, hits * len(self._reads))
        self.counters.add(telemetry.NBYTES_READ, hits * self.object_nbytes_per_page)

    def _check_pages(self, page_hashes: Sequence[str], pages: Sequence[memoryview], *, writable: bool) -> None:
        if len(page_hashes) != len(pages):
            raise LayoutError(f"{len(page_hashes)} page hashes for {len(pages)} pages")
        check_page_hashes(page_hashes)
        for page in pages:
            if page.nbytes != self.layout.page_nbytes or page.format != "B" or page.ndim != 1:
                raise LayoutError(
                    f"page buffer of {page.nbytes} bytes in format {page.format!r}: this rank's pages are "
                    f"{self.layout.page_nbytes} flat bytes ('B')"
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
_SEVERITY = {Status.HIT: 0, Status.ALREADY_THERE: 0, Status.STORED: 1, Status.MISS: 2, Status.FAILED: 3}


def _verified(obj: ObjectRead, answers: Sequence[Outcome], backend: str) -> Outcome:
    """Return what became of one object: the store's answers, or damage that only the checksums show."""
    answer = reduce(_worse, answers)
    if not answer:
        return answer
    wrong = obj.finish()
    return HIT if wrong is None else failed(CorruptObject(wrong, backend=backend, op="read", key=obj.key))


def _worse(one: Outcome, other: Outcome) -> Outcome:
    """Return the outcome that decides for the page: a failure over a miss, stored over already there."""
    return other if _SEVERITY[other.status] > _SEVERITY[one.status] else one


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
