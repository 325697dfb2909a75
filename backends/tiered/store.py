"""The tiered store: reads fall through its stores, writes go to one or all, copies are made in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from functools import partial
from typing import ClassVar, TypeVar

from hicache_storage.backends.tiered.answers import best, combined, lacks, weightiest
from hicache_storage.backends.tiered.copies import Copies, copies_read
from hicache_storage.backends.tiered.copying import Copier
from hicache_storage.backends.tiered.options import Tier, TieredOptions, parse_stores
from hicache_storage.backends.tiered.requests import written_again
from hicache_storage.batches import LazySequence
from hicache_storage.config import from_mapping
from hicache_storage.errors import StoreError, StoreUnavailable, Unsupported
from hicache_storage.middleware import ComposedStore
from hicache_storage.registry import ResolvedStore, resolve_store
from hicache_storage.store import ObjectStore
from hicache_storage.telemetry import Counters, RareWarnings
from hicache_storage.types import (
    HIT,
    MISS,
    ObjectInfo,
    ObjectWrite,
    Outcome,
    RangeRead,
    ReadableBuffer,
    Status,
    WritableBuffer,
    WriteResult,
    failed,
)

R = TypeVar("R", RangeRead, ObjectWrite, str)

TIER_FAILED = "tier_failed"
"""Prefix of the counters of failures that another store may have made good: ``tier_failed.1.StoreUnavailable``, ..."""

_BACKEND = "tiered"
_log = logging.getLogger(__name__)


class TieredStore(ComposedStore):
    """An ordered list of stores as one, the fastest first. An object is there if any of them has it.

    Reads ask one store after the other until one has the object, also behind one that failed. A failure is
    reported only if none has it: a miss in one and a failure in another is a failure. A write
    succeeds if at least one store took it, and says what the first that did found. Deleting concerns every
    store. What one store failed to do is counted, and logged once per cause and minute.

    Quarantining takes out the copy that was read last, so that another store serves the next read; if that is
    long ago, every copy. Where several threads read one damaged object at once, a good copy may go as well.

    Promotion copies whole objects, of which a read named the size, on threads of its own; no read waits
    for it or fails because of it. A store that cannot be reached, or refused a copy lately, gets none.

    Attributes:
        counters: ``copied``, ``copies_dropped``, ``copy_failed.<error>``, ``tier_failed.<number>.<error>``.

    Raises:
        ConfigError, StoreError: one of the stores cannot be opened; those that were are closed again.
    """

    name = _BACKEND
    options_type: ClassVar[type] = TieredOptions

    def __init__(self, options: TieredOptions) -> None:
        self.counters = Counters()
        self._options = options
        self._promotes = options.create and options.promote != "none"
        self._tiers = _opened(options)
        self._closed = False
        self._warnings = RareWarnings(_log)
        self._copies = Copies()
        self._copier = Copier(self._tiers, options, self.counters)
        self.capabilities = combined([tier.capabilities for tier in self._tiers], written_to_all=options.write == "all")

    @property
    def parts(self) -> Sequence[ObjectStore]:
        return tuple(self._tiers)

    # -- reading -----------------------------------------------------------------------------

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        [outcome] = self.read_many([RangeRead(key, offset, targets, object_nbytes)])
        return _raise_or_return(outcome) is Status.HIT

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        requests = LazySequence(len(reads), reads.__getitem__)

        def read(tier: int, indices: Sequence[int]) -> list[Outcome]:
            if tier == 0:
                return self._tiers[0].read_many(requests)
            again = [requests[index] for index in indices]
            for request in again:
                if request.on_filled is not None:
                    request.on_filled(0)
            return self._tiers[tier].read_many(again)

        answers = self._fall_through("read", len(requests), read)
        self._note_copies(requests, answers)
        if self._promotes:
            for index, said in enumerate(answers):
                if len(said) > 1 and said[-1]:
                    self._promote(requests[index], said)
        return [best(said) for said in answers]

    def stat(self, key: str) -> ObjectInfo | None:
        answers: list[Outcome] = []
        for number, tier in enumerate(self._tiers):
            try:
                self._check_open("stat", key)
                info = tier.stat(key)
            except StoreError as error:
                answers.append(failed(error))
                self._note(number, "stat", error)
                continue
            if info is not None:
                return info
            answers.append(MISS)
        _raise_or_return(best(answers))
        return None

    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        def exist(tier: int, indices: Sequence[int]) -> list[Outcome]:
            return self._tiers[tier].exists_many([keys[index] for index in indices])

        return [best(said) for said in self._fall_through("exists", len(keys), exist)]

    def touch_many(self, keys: Sequence[str]) -> list[Outcome]:
        """Count each object as used in every store that has it, so that none of them evicts it first."""
        columns = [
            self._ask(number, "touch", len(keys), partial(tier.touch_many, keys))
            for number, tier in enumerate(self._tiers)
        ]
        return [best(said) for said in zip(*columns, strict=True)]

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object once, as the first store that has it knows it. Cost: the keys of all stores but the last in memory."""
        if not self.capabilities.listing:
            raise Unsupported("one of the stores cannot list", backend=self.name, op="list")
        self._check_open("list", "")
        seen: set[str] = set()
        for tier in self._tiers:
            for info in tier.list_keys(prefix):
                if info.key not in seen:
                    if tier is not self._tiers[-1]:
                        seen.add(info.key)
                    yield info

    # -- writing -----------------------------------------------------------------------------

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        [outcome] = self.write_many([ObjectWrite(key, parts)])
        return WriteResult.STORED if _raise_or_return(outcome) is Status.STORED else WriteResult.ALREADY_THERE

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        requests = LazySequence(len(writes), writes.__getitem__)

        def write(tier: int, indices: Sequence[int]) -> list[Outcome]:
            return self._tiers[tier].write_many(requests if tier == 0 else written_again(requests, indices))

        if self._options.write == "all":
            everything = range(len(requests))
            columns = [
                self._ask(number, "write", len(requests), partial(write, number, everything))
                for number in range(len(self._tiers))
            ]
            return [best(said) for said in zip(*columns, strict=True)]
        answers = self._fall_through("write", len(requests), write)
        if self._options.write == "first_then_background":
            for index, said in enumerate(answers):
                if said[-1].status is Status.STORED:
                    self._copier.finish_write(requests[index].key, requests[index].nbytes, source=len(said) - 1)
        return [best(said) for said in answers]

    def delete(self, key: str) -> bool:
        [outcome] = self.delete_many([key])
        return _raise_or_return(outcome) is Status.HIT

    def delete_many(self, keys: Sequence[str]) -> list[Outcome]:
        """Delete each key from every store, the last one first: a copy upwards cannot bring back what is gone below."""
        with self._copier.background.held(keys, self._options.drain_s) as busy:
            columns = [
                self._ask(number, "delete", len(keys), partial(tier.delete_many, keys))
                for number, tier in reversed(list(enumerate(self._tiers)))
            ]
        answers = zip(keys, zip(*columns, strict=True), strict=True)
        return [_still_copied(key, "delete") if key in busy else weightiest(said) for key, said in answers]

    def quarantine(self, key: str) -> bool:
        """Take the copy that was read last out of use, and what was promoted from it; every copy if that is not known."""
        answers: list[Outcome] = []
        damaged = self._copies.of(key)
        numbers = range(len(self._tiers)) if damaged is None else sorted(damaged)
        with self._copier.background.held([key], self._options.drain_s) as busy:
            for number in reversed(numbers):
                try:
                    self._check_open("quarantine", key)
                    answers.append(HIT if self._tiers[number].quarantine(key) else MISS)
                except StoreError as error:
                    answers.append(failed(error))
                    self._note(number, "quarantine", error)
        return _raise_or_return(_still_copied(key, "quarantine") if busy else weightiest(answers)) is Status.HIT

    # -- memory and lifetime -----------------------------------------------------------------

    def register_memory(self, buffer: WritableBuffer) -> None:
        for tier in self._tiers:
            tier.register_memory(buffer)

    def unregister_memory(self, buffer: WritableBuffer) -> None:
        for tier in self._tiers:
            tier.unregister_memory(buffer)

    def settle(self, wait_s: float) -> bool:
        """Wait until every copy is made; False if that takes longer than *wait_s*."""
        return self._copier.background.settle(wait_s)

    def close(self) -> None:
        """Finish the writes to lower stores within ``drain_s``, then close every store, the first one first."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as stack:
            for tier in reversed(self._tiers):
                stack.callback(tier.close)
            dropped = self._copier.background.close(self._options.drain_s)
            if dropped:
                _log.warning("tiered.copies_lost count=%d waited_s=%.1f", dropped, self._options.drain_s)

    # -- asking the stores -------------------------------------------------------------------

    def _fall_through(
        self, op: str, count: int, call: Callable[[int, Sequence[int]], list[Outcome]]
    ) -> list[list[Outcome]]:
        """Ask the stores in order, each for the requests that none before it granted; return all their answers.

        Args:
            call: asks the store of a number for the requests of some indices.
        """
        answers: list[list[Outcome]] = [[] for _ in range(count)]
        left: Sequence[int] = range(count)
        for number in range(len(self._tiers)):
            for index, answer in zip(left, self._ask(number, op, len(left), partial(call, number, left)), strict=True):
                answers[index].append(answer)
            left = [index for index in left if not answers[index][-1]]
            if not left:
                break
        return answers

    def _ask(self, number: int, op: str, count: int, call: Callable[[], list[Outcome]]) -> list[Outcome]:
        """Return what store *number* says to *count* requests; an error of the whole batch fails each of them."""
        try:
            self._check_open(op, "")
            answers = call()
        except StoreError as error:
            answers = [failed(error)] * count
        for answer in answers:
            if answer.error is not None:
                self._note(number, op, answer.error)
        return answers

    def _note(self, number: int, op: str, error: StoreError) -> None:
        if self._closed or isinstance(error, Unsupported):
            return
        cause = f"{number}.{type(error).__name__}"
        self.counters.add(f"{TIER_FAILED}.{cause}")
        self._warnings.warn(
            cause, "tiered.tier_failed tier=%d backend=%s op=%s %s", number, self._tiers[number].name, op, error
        )

    def _note_copies(self, reads: Sequence[RangeRead], answers: Sequence[Sequence[Outcome]]) -> None:
        """Remember whose copies *reads* came upon; ranges of one object may have come from several stores."""
        read: dict[str, AbstractSet[int]] = {}
        for index, said in enumerate(answers):
            if stores := copies_read(said):
                key = reads[index].key
                read[key] = read[key] | stores if key in read else stores
        self._copies.note(read)

    def _promote(self, read: RangeRead, said: Sequence[Outcome]) -> None:
        """Have the object, which the last store in *said* served, copied to those above it that lack it."""
        if read.object_nbytes is None or read.object_nbytes > self._options.promote_max_nbytes:
            return
        above = said[:1] if self._options.promote == "first" else said[:-1]
        lacking = [number for number, answer in enumerate(above) if lacks(answer)]
        if lacking:
            self._copier.promote(read.key, read.object_nbytes, len(said) - 1, lacking)

    def _check_open(self, op: str, key: str) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed", backend=self.name, op=op, key=key)


def _opened(options: TieredOptions) -> list[ObjectStore]:
    """Return every store open. All options are worked out before anything is opened."""
    resolved = [_resolved(number, tier) for number, tier in enumerate(parse_stores(options.stores))]
    with ExitStack() as opened:
        tiers: list[ObjectStore] = []
        for tier in resolved:
            if isinstance(tier, ResolvedStore):
                tiers.append(tier.open(looking=not options.create, evicting=options.evict))
            else:
                tiers.append(tier)
            opened.callback(tiers[-1].close)
        opened.pop_all()
    return tiers


def _resolved(number: int, tier: Tier) -> ResolvedStore | ObjectStore:
    if isinstance(tier, ObjectStore):
        return tier
    return resolve_store(tier.target, from_mapping(tier.options, f"tiered option stores[{number}]"), nested=True)


def _raise_or_return(outcome: Outcome) -> Status:
    if outcome.error is not None:
        raise outcome.error
    return outcome.status


def _still_copied(key: str, op: str) -> Outcome:
    reason = "a copy of the object is still being made, it may come back"
    return failed(StoreUnavailable(reason, backend=_BACKEND, op=op, key=key))
