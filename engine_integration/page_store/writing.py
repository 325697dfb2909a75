"""Writing pages so that what is stored is a prefix, and stays the front of one where the store evicts.

Pages go to the store in prefix order, in groups just large enough to keep a backend's threads busy. The objects
of a group are written at once, so that a page may be whole for a moment before the one in front of it; none is
begun while a page of an earlier group is missing. Where a page fails, nothing behind it is written, and
what its group stored behind it is deleted again. Deleting costs nothing while nothing fails, where page after
page would cost a round trip each. Whoever saw such an object in between loses a hit at worst, as by any
eviction. What others had stored before stays, unless it is behind a gap that eviction left.

A store that evicts by use may take the room for a page from the pages in front of it. There a group begins
small and grows, and after each it is asked whether the page that would go next is still there. If it is not, what
lies behind the gap is deleted, and the call goes on from there in smaller groups until not even one page fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from hicache_storage import telemetry
from hicache_storage.batches import LazySequence
from hicache_storage.engine_integration.page_store.guarded import GuardedStore
from hicache_storage.engine_integration.page_store.memory import Page, parts_of
from hicache_storage.engine_integration.page_store.outcomes import leading_successes, worse
from hicache_storage.engine_integration.page_store.recency import Recency
from hicache_storage.errors import StoreError, StoreFull
from hicache_storage.layout import ChunkWrite, TrailerMaker, object_key
from hicache_storage.types import ALREADY_THERE, STORED, ObjectWrite, Outcome, Status, failed

_FIRST_OBJECTS = 8
_GROUP_OBJECTS = 128
_GROUP_NBYTES = 16 << 20
_GROUP_MAX_OBJECTS = 1024

_GROWTH = 4
"""By how much a prefix grows before it is touched again, so that each object is touched 1.3 times on average."""


class PageWriter:
    """Writes pages of one rank. Thread-safe."""

    def __init__(self, store: GuardedStore, recency: Recency, plan: Sequence[ChunkWrite], digest: str) -> None:
        self.store = store
        self.recency = recency
        self.objects_per_page = len(plan)
        self.group_pages = pages_per_group(plan)
        self._plan = plan
        self._suffixes = [write.chunk.suffix for write in plan]
        self._digest = digest

    def write(
        self, page_hashes: Sequence[str], pages: Sequence[Page], prefix: Sequence[str]
    ) -> tuple[list[Outcome], list[Outcome]]:
        """Store *pages*, which follow *prefix*; return the outcomes of the leading pages, and those of pages left out behind them."""
        run = _Run(self, page_hashes, pages, prefix)
        run.perform()
        stored = [(page, position) for page, positions in enumerate(run.new) for position in positions]
        self.store.counters.add(telemetry.OBJECTS_STORED, len(stored))
        self.store.counters.add(telemetry.NBYTES_STORED, sum(self._plan[position].nbytes for _, position in stored))
        self.store.counters.add(f"{telemetry.PAGES_NOT_STORED}.{run.cause}", len(run.left_out))
        return run.outcomes, run.left_out

    def request(self, page_hash: str, page: Page, position: int) -> ObjectWrite:
        """Return the write of one of a page's objects."""
        write = self._plan[position]
        key = self.key(page_hash, position)
        payload = parts_of(page, write.page_offset, write.nbytes)
        return ObjectWrite(key, payload, TrailerMaker(key, payload, write.block_nbytes))

    def key(self, page_hash: str, position: int) -> str:
        return object_key(page_hash, self._digest, self._suffixes[position])


def pages_per_group(plan: Sequence[ChunkWrite]) -> int:
    """Return how many pages are written at once at most: 128 objects, or 16 MiB of smaller ones."""
    page_nbytes = sum(write.nbytes for write in plan)
    pages = max(-(-_GROUP_OBJECTS // len(plan)), _GROUP_NBYTES // page_nbytes)
    return max(1, min(pages, _GROUP_MAX_OBJECTS // len(plan)))


class _Run:
    """One call.

    Attributes:
        outcomes: of the leading pages, the first failed one included.
        left_out: of the pages behind them.
        cause: name of the error for which they are left out.
        new: by position, the objects of each page that this call stored, and is to delete if the page is left out.
    """

    def __init__(
        self, writer: PageWriter, page_hashes: Sequence[str], pages: Sequence[Page], prefix: Sequence[str]
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.left_out: list[Outcome] = []
        self.cause = ""
        self.new: list[Sequence[int]] = [()] * len(page_hashes)
        self._writer = writer
        self._store = writer.store
        self._recency = writer.recency
        self._page_hashes = page_hashes
        self._pages = pages
        self._prefix = prefix
        self._refreshed = len(prefix)
        self._group_pages = writer.group_pages
        self._room_is_scarce = False
        if self._recency.is_kept:
            self._group_pages = max(1, _FIRST_OBJECTS // writer.objects_per_page)

    def perform(self) -> None:
        """Write until everything is stored or something stands in the way."""
        if self._prefix:
            self._check_prefix()
        while not self._is_over():
            self._write_group()
            if self._must_refresh():
                self._refresh()

    def _is_over(self) -> bool:
        return bool(self.left_out) or len(self.outcomes) == len(self._pages)

    def _check_prefix(self) -> None:
        """Leave everything out unless the last page of the prefix is there; with it are all others."""
        answers = self._exists(self._prefix[-1])
        if all(answers):
            return
        answer = answers[leading_successes(answers)]
        self._store.count_failure(telemetry.LOOKUP_FAILED, answer)
        self._leave_out(0, answer.error or StoreError("it is not there"))

    def _write_group(self) -> None:
        start = len(self.outcomes)
        stop = min(start + self._group_pages, len(self._pages))
        per_page = self._writer.objects_per_page

        def request(index: int) -> ObjectWrite:
            page, position = divmod(index, per_page)
            return self._writer.request(self._page_hashes[start + page], self._pages[start + page], position)

        answers = self._store.write_many(LazySequence((stop - start) * per_page, request))
        self.outcomes += [ALREADY_THERE] * (stop - start)
        for index, answer in enumerate(answers, start * per_page):
            page, position = divmod(index, per_page)
            if answer.status is Status.FAILED:
                self._store.count_failure(telemetry.WRITE_FAILED, answer)
                self.outcomes[page] = worse(self.outcomes[page], answer)
            elif answer.status is Status.STORED:
                self.new[page] = (*self.new[page], position)
                if self.outcomes[page] is ALREADY_THERE:
                    self.outcomes[page] = STORED
        if not self._room_is_scarce:
            self._group_pages = min(2 * self._group_pages, self._writer.group_pages)
        first = start + leading_successes(self.outcomes[start:])
        if first < stop and (error := self.outcomes[first].error) is not None:
            self._leave_out(first + 1, error)

    # -- staying a prefix ------------------------------------------------------------------

    def _must_refresh(self) -> bool:
        """Return whether to touch all pages now: at the end, as they grow until then, and once some have been evicted."""
        if not self._recency.is_kept:
            return False
        if self._is_over() or self._room_is_scarce:
            return True
        is_last_but_one = len(self._pages) - len(self.outcomes) <= self._group_pages
        if not is_last_but_one and len(self._prefix) + len(self.outcomes) >= _GROWTH * self._refreshed:
            return True
        next_to_go = max(0, self._refreshed - 1)
        return Status.MISS in [answer.status for answer in self._exists(self._hash_of(next_to_go))]

    def _refresh(self) -> None:
        """Touch all pages up to here from their end, and give up what lies behind one that is gone."""
        stored = leading_successes(self.outcomes)
        if stored == 0:
            return
        there = self._recency.refresh([*self._prefix, *self._page_hashes[:stored]])
        self._refreshed = there
        kept = there - len(self._prefix)
        if kept == stored:
            return
        # What others had stored behind the gap is out of everybody's reach too, and was just made the last to go.
        self.new[max(0, kept) : stored] = [range(self._writer.objects_per_page)] * (stored - max(0, kept))
        if kept < 0 or self._group_pages == 1 or self.left_out:
            self._leave_out(max(0, kept), StoreFull("the store made room by evicting it"))
            return
        self._room_is_scarce = True
        self._group_pages = max(1, min(self._group_pages, stored - kept) // 2)
        self._undo(kept)
        del self.outcomes[kept:]

    def _leave_out(self, first: int, cause: StoreError) -> None:
        """Store nothing from page *first* on: neither now nor, as far as this call did it, before."""
        self._undo(first)
        del self.outcomes[first:]
        reason = f"not stored, because a page in front of it could not be: {cause}"
        error = StoreError(reason, backend=self._store.name, op="write")
        error.retryable = cause.retryable
        error.__cause__ = cause
        self.cause = type(cause).__name__
        self.left_out = [failed(error)] * (len(self._pages) - first)

    def _undo(self, first: int) -> None:
        """Delete the `new` objects of page *first* and those behind it, from the end."""
        keys = [
            self._writer.key(self._page_hashes[page], position)
            for page in reversed(range(first, len(self.outcomes)))
            for position in self.new[page]
        ]
        if keys:
            for answer in self._store.delete_many(keys):
                self._store.count_failure(telemetry.WRITE_FAILED, answer)
        self.new[first:] = [()] * (len(self._pages) - first)

    def _exists(self, page_hash: str) -> list[Outcome]:
        keys = [self._writer.key(page_hash, position) for position in range(self._writer.objects_per_page)]
        return self._store.exists_many(keys)

    def _hash_of(self, index: int) -> str:
        """Return the hash of a page counted from the first of the prefix."""
        behind = index - len(self._prefix)
        return self._page_hashes[behind] if behind >= 0 else self._prefix[index]
