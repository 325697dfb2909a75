"""Reading pages: which ranges to ask for, verifying what comes, and moving it where it belongs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from hicache_storage import telemetry
from hicache_storage.batches import LazySequence
from hicache_storage.engine_integration.page_store.guarded import DAMAGE, GuardedStore
from hicache_storage.engine_integration.page_store.memory import Page, parts_of
from hicache_storage.engine_integration.page_store.namespace_guard import NamespaceGuard
from hicache_storage.engine_integration.page_store.outcomes import worse
from hicache_storage.engine_integration.page_store.rows import copy_rows
from hicache_storage.errors import CorruptObject, StoreError
from hicache_storage.layout import ChunkRead, RangeVerifier, object_key, trailer_nbytes
from hicache_storage.types import HIT, Outcome, RangeRead, failed

_BATCH_OBJECTS = 1024
_BATCH_SCRATCH_NBYTES = 64 << 20


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

    @property
    def scratch_nbytes(self) -> int:
        """Memory that reading the object takes beside the page it goes to."""
        return self.trailer_nbytes + (self.plan.nbytes if self.plan.copies else 0)


def pages_per_batch(steps: Sequence[ReadStep]) -> int:
    """Return how many pages to read at once: their scratch memory is about 64 MiB at most, or that of one page."""
    scratch_nbytes = sum(step.scratch_nbytes for step in steps)
    return max(1, min(_BATCH_OBJECTS // len(steps), _BATCH_SCRATCH_NBYTES // scratch_nbytes))


class PageReader:
    """Reads pages of one rank and takes damaged objects out of use. Thread-safe."""

    def __init__(self, store: GuardedStore, guard: NamespaceGuard, steps: Sequence[ReadStep], digest: str) -> None:
        self._store = store
        self._guard = guard
        self._steps = steps
        self._digest = digest
        self._batch_pages = pages_per_batch(steps)

    def read(self, page_hashes: Sequence[str], pages: Sequence[Page]) -> list[Outcome]:
        """Fill *pages* with verified bytes; one outcome per page, in order."""
        outcomes: list[Outcome] = []
        for start in range(0, len(page_hashes), self._batch_pages):
            some = slice(start, start + self._batch_pages)
            outcomes += self._read_batch(page_hashes[some], pages[some])
        return outcomes

    def _read_batch(self, page_hashes: Sequence[str], pages: Sequence[Page]) -> list[Outcome]:
        batch = ReadBatch(self._steps, self._digest, page_hashes, pages)
        answers = self._store.read_many(batch.requests())
        outcomes = [HIT] * len(page_hashes)
        damaged: list[str] = []
        for page, obj, mine in batch.take_objects():
            answer = self._verified(obj, answers[mine])
            if not answer:
                outcomes[page] = worse(outcomes[page], answer)
                self._store.count_failure(telemetry.READ_FAILED, answer)
                if isinstance(answer.error, DAMAGE):
                    self._store.warn(
                        "corrupt", "object.corrupt backend=%s key=%s reason=%s", self._store.name, obj.key, answer.error
                    )
                    damaged.append(obj.key)
        self._discard(damaged)
        return outcomes

    def _verified(self, obj: ObjectRead, answers: Sequence[Outcome]) -> Outcome:
        """Return what became of one object: the store's answers, or damage that only the checksums show."""
        answer = reduce(worse, answers)
        if not answer:
            return answer
        wrong = obj.finish()
        return HIT if wrong is None else failed(CorruptObject(wrong, backend=self._store.name, op="read", key=obj.key))

    def _discard(self, damaged: Sequence[str]) -> None:
        """Take *damaged* objects out of use, unless they may be sound objects of another model."""
        if not damaged or not self._guard.may_discard():
            return
        for key in damaged:
            try:
                taken = self._store.quarantine(key)
                self._store.counters.add(telemetry.OBJECTS_QUARANTINED, int(taken))
            except StoreError as error:
                self._store.count_failure(telemetry.WRITE_FAILED, failed(error))


class ObjectRead:
    """One object of one page being read: its memory, its verifier, its one or two requests.

    The payload goes straight into the page where the plan allows it, else into scratch memory.
    Where the range ends with the payload, the trailer comes with it in one request; otherwise a
    second request of the same key fetches it.
    """

    __slots__ = ("_filled", "_page", "_trailer", "_verifier", "key", "step")

    def __init__(self, key: str, step: ReadStep, page: Page) -> None:
        plan = step.plan
        self.key = key
        self.step = step
        self._page = page
        if plan.copies:
            self._filled: tuple[memoryview, ...] = (memoryview(bytearray(plan.nbytes)),)
        else:
            self._filled = parts_of(page, plan.page_offset, plan.nbytes)
        self._trailer = memoryview(bytearray(step.trailer_nbytes))
        self._verifier = RangeVerifier(key, plan.block_nbytes, plan.payload_nbytes, step.first_block, self._filled)

    def request(self, part: int) -> RangeRead:
        """Return request *part*, 0 for the range and 1 for a trailer that does not follow it."""
        step, plan = self.step, self.step.plan
        if part == 1:
            return RangeRead(self.key, plan.payload_nbytes, (self._trailer,), step.object_nbytes)
        targets = (*self._filled, self._trailer) if step.reaches_trailer else self._filled
        return RangeRead(self.key, plan.offset, targets, step.object_nbytes, self._verifier.advance)

    def finish(self) -> str | None:
        """Verify what was read and put it into the page; say what is wrong, None if nothing is."""
        wrong = self._verifier.mismatch(self._trailer)
        if wrong is None and isinstance(self._page, memoryview):
            for copy in self.step.plan.copies:
                copy_rows(self._filled[0], self._page, copy)
        return wrong


class ReadBatch:
    """The objects of some pages, and the requests that fetch them."""

    def __init__(
        self, steps: Sequence[ReadStep], digest: str, page_hashes: Sequence[str], pages: Sequence[Page]
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

    def take_objects(self) -> Iterator[tuple[int, ObjectRead, slice]]:
        """Yield each object's page, the object, and which of the requests are its own; the batch keeps none of them."""
        start = 0
        for page in range(len(self._page_hashes)):
            for step in range(len(self._steps)):
                stop = start + len(_parts(self._steps[step]))
                obj = self._object(page, step)
                del self._objects[page * len(self._steps) + step]
                yield page, obj, slice(start, stop)
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
