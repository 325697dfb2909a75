"""Reading pages: which ranges to ask for, verifying what comes, and moving it where it belongs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hicache_storage.batches import LazySequence
from hicache_storage.engine_integration.page_store.rows import copy_rows
from hicache_storage.layout import ChunkRead, RangeVerifier, object_key, trailer_nbytes
from hicache_storage.types import RangeRead


@dataclass(frozen=True, slots=True)
class ReadStep:
    """One object of every page: the plan, with everything that does not depend on the page worked out."""

    plan: ChunkRead
    suffix: str
    object_nbytes: int
    trailer_nbytes: int
    first_block: int
    reaches_trailer: bool

    @classmethod
    def of(cls, plan: ChunkRead) -> ReadStep:
        return cls(
            plan=plan,
            suffix=plan.chunk.suffix,
            object_nbytes=plan.object_nbytes,
            trailer_nbytes=trailer_nbytes(plan.payload_nbytes, plan.block_nbytes),
            first_block=plan.offset // plan.block_nbytes,
            reaches_trailer=plan.offset + plan.nbytes == plan.payload_nbytes,
        )


class ObjectRead:
    """One object of one page being read: its memory, its verifier, its one or two requests.

    The payload goes straight into the page where the plan allows it, else into scratch memory.
    Where the range ends with the payload, the trailer comes with it in one request; otherwise a
    second request of the same key fetches it.
    """

    __slots__ = ("_filled", "_page", "_trailer", "_verifier", "key", "step")

    def __init__(self, key: str, step: ReadStep, page: memoryview) -> None:
        plan = step.plan
        self.key = key
        self.step = step
        self._page = page
        if plan.copies:
            self._filled = memoryview(bytearray(plan.nbytes))
        else:
            self._filled = page[plan.page_offset : plan.page_offset + plan.nbytes]
        self._trailer = memoryview(bytearray(step.trailer_nbytes))
        self._verifier = RangeVerifier(key, plan.block_nbytes, plan.payload_nbytes, step.first_block, self._filled)

    def request(self, part: int) -> RangeRead:
        """Return request *part*, 0 for the range and 1 for a trailer that does not follow it."""
        step, plan = self.step, self.step.plan
        if part == 1:
            return RangeRead(self.key, plan.payload_nbytes, (self._trailer,), step.object_nbytes)
        targets = (self._filled, self._trailer) if step.reaches_trailer else (self._filled,)
        return RangeRead(self.key, plan.offset, targets, step.object_nbytes, self._verifier.advance)

    def finish(self) -> str | None:
        """Verify what was read and put it into the page; say what is wrong, None if nothing is."""
        wrong = self._verifier.mismatch(self._trailer)
        if wrong is None:
            for copy in self.step.plan.copies:
                copy_rows(self._filled, self._page, copy)
        return wrong


class ReadBatch:
    """The objects of some pages, and the requests that fetch them."""

    def __init__(
        self, steps: Sequence[ReadStep], digest: str, page_hashes: Sequence[str], pages: Sequence[memoryview]
    ) -> None:
        self._steps = steps
        self._digest = digest
        self._page_hashes = page_hashes
        self._pages = pages
        self._parts = [(step, part) for step in range(len(steps)) for part in _parts(steps[step])]
        self._objects: dict[int, ObjectRead] = {}

    def requests(self) -> Sequence[RangeRead]:
        """Return the requests, page by page; each is built when it is asked for."""
        return LazySequence(len(self._page_hashes) * len(self._parts), self._request)

    def objects(self) -> Iterator[tuple[int, ObjectRead, slice]]:
        """Yield each object's page, the object, and which of the requests are its own."""
        start = 0
        for page in range(len(self._page_hashes)):
            for step in range(len(self._steps)):
                stop = start + len(_parts(self._steps[step]))
                yield page, self._object(page, step), slice(start, stop)
                start = stop

    def _request(self, index: int) -> RangeRead:
        page, position = divmod(index, len(self._parts))
        step, part = self._parts[position]
        return self._object(page, step).request(part)

    def _object(self, page: int, step: int) -> ObjectRead:
        slot = page * len(self._steps) + step
        made = self._objects.get(slot)
        if made is None:
            key = object_key(self._page_hashes[page], self._digest, self._steps[step].suffix)
            # Two threads may get here for the two requests of one object; setdefault keeps one, atomically.
            made = self._objects.setdefault(slot, ObjectRead(key, self._steps[step], self._pages[page]))
        return made


def _parts(step: ReadStep) -> range:
    return range(1) if step.reaches_trailer else range(2)
