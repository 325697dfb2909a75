"""The values that travel: what is true, what is equal, how large they are."""

from __future__ import annotations

import dataclasses
from array import array

import pytest

from hicache_storage.errors import StoreUnavailable
from hicache_storage.types import (
    ALREADY_THERE,
    HIT,
    MISS,
    STORED,
    Capabilities,
    ObjectInfo,
    ObjectWrite,
    Outcome,
    RangeRead,
    Status,
    failed,
    nbytes_of,
)


@pytest.mark.parametrize(
    ("outcome", "truth"),
    [(HIT, True), (STORED, True), (ALREADY_THERE, True), (MISS, False), (failed(StoreUnavailable("no answer")), False)],
)
def test_an_outcome_is_true_unless_it_is_a_miss_or_a_failure(outcome: Outcome, truth: bool) -> None:
    assert bool(outcome) is truth


def test_every_status_has_an_outcome_and_only_failures_have_an_error() -> None:
    error = StoreUnavailable("no answer")
    outcomes = [HIT, MISS, STORED, ALREADY_THERE, failed(error)]

    assert {outcome.status for outcome in outcomes} == set(Status)
    assert [outcome.error for outcome in outcomes] == [None, None, None, None, error]


def test_a_miss_and_a_failure_are_different_things() -> None:
    assert failed(StoreUnavailable("no answer")) != MISS


@pytest.mark.parametrize(
    "value",
    [HIT, Capabilities(), ObjectInfo("k", 1), RangeRead("k", 0, []), ObjectWrite("k", [])],
    ids=lambda value: type(value).__name__,
)
def test_what_travels_is_frozen_and_slotted(value: object) -> None:
    field = dataclasses.fields(value)[0].name  # type: ignore[arg-type]

    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, field, None)
    assert not hasattr(value, "__dict__")


@pytest.mark.parametrize(
    ("buffer", "nbytes"),
    [
        (b"", 0),
        (b"abc", 3),
        (bytearray(5), 5),
        (memoryview(b"abcd")[1:], 3),
        (memoryview(array("d", [0.0] * 3)), 24),
        (memoryview(bytearray(24)).cast("B", (4, 6)), 24),
    ],
)
def test_a_size_is_in_bytes_whatever_the_item_format(buffer: bytes | bytearray | memoryview, nbytes: int) -> None:
    assert nbytes_of(buffer) == nbytes


def test_a_request_is_as_large_as_its_parts() -> None:
    parts: list[bytearray | memoryview] = [bytearray(3), memoryview(array("I", [1, 2])), bytearray()]

    assert RangeRead("k", 7, parts).nbytes == 11
    assert ObjectWrite("k", parts).nbytes == 11
    assert RangeRead("k", 7, []).nbytes == ObjectWrite("k", []).nbytes == 0
