"""Planted faults: stores with the mistakes that people make, and for each the law that catches it."""

from __future__ import annotations

import fnmatch
import itertools
import posixpath
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, cast
from unittest import TestCase

import hypothesis
import pytest

from hicache_storage.errors import RangeError, StoreError
from hicache_storage.store import ObjectStore
from hicache_storage.testing.contract import SMALL_STORE_NBYTES, StoreHooks
from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from hicache_storage.testing.model import store_machine
from hicache_storage.types import (
    STORED,
    ObjectInfo,
    Outcome,
    RangeRead,
    ReadableBuffer,
    WritableBuffer,
    WriteResult,
    failed,
    nbytes_of,
)
from tests.contract.planting import assert_all_caught, planted_classes

pytest_plugins = ["pytester"]


class ServesShortReads(MemoryStore):
    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        try:
            return super().read_into(key, offset, targets, object_nbytes=object_nbytes)
        except RangeError:
            return True


class CountsFromTheEnd(MemoryStore):
    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        if offset < 0 and key in self._objects:
            offset += len(self._objects[key])
        return super().read_into(key, offset, targets, object_nbytes=object_nbytes)


class FindsNothingInMissingObjects(MemoryStore):
    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        found = super().read_into(key, offset, targets, object_nbytes=object_nbytes)
        return found or sum(map(nbytes_of, targets)) == 0


class RaisesOnAMiss(MemoryStore):
    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        if not super().read_into(key, offset, targets, object_nbytes=object_nbytes):
            raise StoreError("no such object")
        return True


class IgnoresDeclaredSizes(MemoryStore):
    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        return super().read_into(key, offset, targets)


class LooksAtTheRangeFirst(MemoryStore):
    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        found = super().read_into(key, offset, targets)
        return found and super().read_into(key, offset, targets, object_nbytes=object_nbytes)


class FillsOnlyIovMaxTargets(MemoryStore):
    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        return super().read_into(key, offset, targets[:1024], object_nbytes=object_nbytes)


class FillsTargetsBackwards(MemoryStore):
    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        return super().read_into(key, offset, targets[::-1], object_nbytes=object_nbytes)


class WritesWholeBlocks(MemoryStore):
    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        for target in targets:
            if isinstance(target, memoryview) and target.obj is not None:
                arena = memoryview(target.obj)
                arena[:] = bytes(len(arena))
        return super().read_into(key, offset, targets, object_nbytes=object_nbytes)


class KeepsTargets(MemoryStore):
    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        self.kept = [memoryview(target) for target in targets]
        return super().read_into(key, offset, targets, object_nbytes=object_nbytes)


class RemembersMisses(MemoryStore):
    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        self.missed: set[str] = getattr(self, "missed", set())
        if key in self.missed or not super().read_into(key, offset, targets, object_nbytes=object_nbytes):
            self.missed.add(key)
            return False
        return True


class KeepsTheCallersBuffer(MemoryStore):
    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        result = super().write(key, parts)
        if len(parts) == 1:
            self._objects[key] = parts[0]  # type: ignore[assignment]  # a buffer that can change: the fault
        return result


class KeepsSources(MemoryStore):
    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        self.kept = [memoryview(part) for part in parts]
        return super().write(key, parts)


class KeepsOnlyTheLastPart(MemoryStore):
    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        return super().write(key, parts[-1:])


class Overwrites(MemoryStore):
    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        self._objects.pop(key, None)
        return super().write(key, parts)


class NeverReplaces(MemoryStore):
    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        return WriteResult.ALREADY_THERE if self._objects.get(key) is not None else super().write(key, parts)


class PublishesBeforeItIsComplete(MemoryStore):
    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        body = b"".join(parts)
        super().write(key, [body[: len(body) // 2]])
        time.sleep(0.001)
        return super().write(key, [body])


class AlwaysDeletes(MemoryStore):
    def delete(self, key: str) -> bool:
        super().delete(key)
        return True


class QuarantinesTheKey(MemoryStore):
    def quarantine(self, key: str) -> bool:
        self.bad = {*getattr(self, "bad", ()), key}
        return super().quarantine(key)

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        return WriteResult.ALREADY_THERE if key in getattr(self, "bad", ()) else super().write(key, parts)


class StopsAtTheFirstFailure(MemoryStore):
    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        outcomes = super().read_many(reads)
        return outcomes[: 1 + next((i for i, outcome in enumerate(outcomes) if outcome.error), len(outcomes))]


class FailsTheWholeBatch(MemoryStore):
    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        outcomes = super().read_many(reads)
        error = next((outcome.error for outcome in outcomes if outcome.error), None)
        return [failed(error) for _ in outcomes] if error else outcomes


class AnswersInItsOwnOrder(MemoryStore):
    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        return sorted(super().read_many(reads), key=bool)


class RaisesOutOfABatch(MemoryStore):
    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        return [Outcome(STORED.status) if self.stat(key) else failed(StoreError("gone")) for key in keys]


class AnswersEveryKeyOnce(MemoryStore):
    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        return super().exists_many(list(dict.fromkeys(keys)))


class PromisesTooEarly(MemoryStore):
    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        for read in reads:
            if read.on_filled is not None:
                read.on_filled(read.nbytes)
        return super().read_many(reads)


class ReadsAgainWithoutAWord(MemoryStore):
    """Its first attempt meets another object, as one does that is replaced meanwhile."""

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        for read in reads:
            target = memoryview(read.targets[0]).cast("B")
            target[:1] = b"?"
            if read.on_filled is not None:
                read.on_filled(1)
        return super().read_many([replace(read, on_filled=None) for read in reads])


class MatchesPrefixesAsPatterns(MemoryStore):
    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return (info for info in super().list_keys() if fnmatch.fnmatchcase(info.key, prefix + "*"))


class ListsFolders(MemoryStore):
    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return (
            info for info in super().list_keys() if f"{info.key}/".startswith(prefix.rstrip("/") + "/") or not prefix
        )


class ListsOnePage(MemoryStore):
    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return itertools.islice(super().list_keys(prefix), 1000)


class StaysOpen(MemoryStore):
    def close(self) -> None:
        pass


class _Renames(MemoryStore):
    rename: Callable[[str], str]

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        return super().write(self.rename(key), parts)

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        return super().read_into(self.rename(key), offset, targets, object_nbytes=object_nbytes)

    def delete(self, key: str) -> bool:
        return super().delete(self.rename(key))


class FoldsCase(_Renames):
    rename = staticmethod(str.casefold)


class NormalisesUnicode(_Renames):
    rename = staticmethod(lambda key: unicodedata.normalize("NFC", key))


class NormalisesPaths(_Renames):
    rename = staticmethod(lambda key: posixpath.normpath(key) if key else key)


class CutsLongKeys(_Renames):
    rename = staticmethod(lambda key: key[:255])


PLANTED = [
    (ServesShortReads, "test_a_range_outside_the_object_is_an_error"),
    (CountsFromTheEnd, "test_a_range_outside_the_object_is_an_error"),
    (FindsNothingInMissingObjects, "test_a_missing_object_is_an_answer"),
    (RaisesOnAMiss, "test_a_missing_object_is_an_answer"),
    (IgnoresDeclaredSizes, "test_an_object_of_another_size_is_corrupt"),
    (LooksAtTheRangeFirst, "test_a_truncated_object_is_corrupt_and_not_a_wrong_range"),
    (FillsOnlyIovMaxTargets, "test_there_may_be_thousands_of_targets"),
    (FillsTargetsBackwards, "test_targets_are_filled_one_after_the_other"),
    (WritesWholeBlocks, "test_a_read_touches_nothing_outside_its_targets"),
    (KeepsTargets, "test_targets_are_free_after_a_read"),
    (RemembersMisses, "test_a_miss_is_not_remembered"),
    (KeepsTheCallersBuffer, "test_a_writer_may_change_its_buffer_afterwards"),
    (KeepsSources, "test_sources_are_free_after_a_write"),
    (KeepsOnlyTheLastPart, "test_parts_are_concatenated"),
    (Overwrites, "test_an_object_that_is_there_stays_as_it_is"),
    (NeverReplaces, "test_an_object_of_another_size_is_replaced"),
    (PublishesBeforeItIsComplete, "test_a_reader_sees_all_of_an_object_or_nothing"),
    (PublishesBeforeItIsComplete, "test_stat_sees_all_of_an_object_or_nothing"),
    (AlwaysDeletes, "test_deleting_a_missing_object_says_so"),
    (QuarantinesTheKey, "test_a_quarantined_key_can_be_written_again"),
    (StopsAtTheFirstFailure, "test_a_failed_read_does_not_fail_its_neighbours"),
    (FailsTheWholeBatch, "test_a_failed_read_does_not_fail_its_neighbours"),
    (AnswersInItsOwnOrder, "test_reads_are_answered_in_request_order"),
    (RaisesOutOfABatch, "test_what_is_no_key_fails_its_request"),
    (AnswersEveryKeyOnce, "test_existence_is_answered_in_request_order"),
    (PromisesTooEarly, "test_reported_progress_is_true"),
    (ReadsAgainWithoutAWord, "test_what_a_reader_was_told_is_there_is_what_it_gets"),
    (MatchesPrefixesAsPatterns, "test_a_prefix_is_a_string_and_not_a_pattern"),
    (ListsFolders, "test_a_prefix_is_a_string_and_not_a_pattern"),
    (ListsOnePage, "test_a_long_listing_is_complete"),
    (StaysOpen, "test_a_closed_store_is_unavailable"),
    (FoldsCase, "test_keys_never_collide"),
    (NormalisesUnicode, "test_keys_never_collide"),
    (NormalisesPaths, "test_keys_never_collide"),
    (CutsLongKeys, "test_keys_never_collide"),
]


class Hooks(StoreHooks):
    store_type: type[MemoryStore]
    shared_between_processes = False

    @pytest.fixture
    def store(self) -> ObjectStore:
        return self.store_type()

    @pytest.fixture
    def small_store(self) -> ObjectStore:
        return self.store_type(MemoryOptions(capacity_nbytes=SMALL_STORE_NBYTES))

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        assert isinstance(store, MemoryStore)
        store._objects[key] = body

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        assert isinstance(store, MemoryStore)
        return store._objects.get(key)


class MachineCase(TestCase):
    """What hypothesis adds to the test case of a state machine."""

    settings: ClassVar[hypothesis.settings]


PLANTED_CLASSES = planted_classes(Hooks, PLANTED)


def test_every_planted_fault_is_caught_by_its_law(pytester: pytest.Pytester) -> None:
    assert_all_caught(pytester, __name__)


@pytest.mark.parametrize(
    "store_type",
    [FoldsCase, NormalisesPaths, NormalisesUnicode, Overwrites, NeverReplaces, AnswersEveryKeyOnce, AlwaysDeletes,
     StopsAtTheFirstFailure, IgnoresDeclaredSizes, ServesShortReads, ListsFolders, MatchesPrefixesAsPatterns],
)  # fmt: skip
def test_the_model_finds_planted_faults(store_type: type[MemoryStore]) -> None:
    case = cast("type[MachineCase]", store_machine(store_type))
    # Finding is enough; making it small takes long.
    case.settings = hypothesis.settings(case.settings, phases=[hypothesis.Phase.generate])

    result = case("runTest").run()

    assert result is not None
    assert len(result.failures) == 1
