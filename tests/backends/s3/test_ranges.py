"""Neighbouring ranges of one object go in one request, and each still has its own answer."""

from __future__ import annotations

import random

import pytest

from hicache_storage.backends.s3 import S3Store
from hicache_storage.backends.s3.ranges import RunQueue
from hicache_storage.batches import LazySequence
from hicache_storage.errors import CorruptObject, RangeError
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.types import HIT, MISS, RangeRead, Status
from tests.backends.s3.stub import Reply, Stub, refused

pytest_plugins = ["tests.backends.s3.fixtures"]

_BODY = body_of("body", 1000)


def _runs(reads: list[RangeRead], gap_nbytes: int) -> list[list[int]]:
    queue = RunQueue(reads, gap_nbytes)
    return [[want.index for want in run] for run in iter(queue.take, [])]


def _read(key: str, offset: int, length: int) -> RangeRead:
    return RangeRead(key, offset, [bytearray(length)])


@pytest.mark.parametrize(
    ("second", "together"),
    [
        (("k", 10, 5), True),
        (("k", 12, 5), True),
        (("k", 14, 5), True),
        (("k", 15, 5), False),
        (("k", 9, 5), False),
        (("k", 0, 10), False),
        (("l", 10, 5), False),
        (("k", 10, 0), False),
        (("k", -1, 5), False),
    ],
)
def test_ranges_go_together_if_they_follow_each_other(second: tuple[str, int, int], together: bool) -> None:
    runs = _runs([_read("k", 0, 10), _read(*second)], gap_nbytes=4)

    assert runs == ([[0, 1]] if together else [[0], [1]])


def test_every_request_is_given_out_once_and_asked_for_once(rng: random.Random) -> None:
    reads = [_read(rng.choice("ab"), rng.randrange(8), rng.randrange(4)) for _ in range(500)]
    asked: list[int] = []

    def make(index: int) -> RangeRead:
        asked.append(index)
        return reads[index]

    queue = RunQueue(LazySequence(len(reads), make), gap_nbytes=2)
    given = [want.index for run in iter(queue.take, []) for want in run]

    assert given == asked == list(range(500))


def test_neighbouring_ranges_cost_one_request(stub: Stub) -> None:
    stub.objects["/bucket/k"] = _BODY
    targets = [poisoned(10) for _ in range(20)]

    with S3Store(stub.options()) as store:
        outcomes = store.read_many([RangeRead("k", 20 * i, [target]) for i, target in enumerate(targets)])

    assert outcomes == [HIT] * 20
    assert targets == [_BODY[20 * i : 20 * i + 10] for i in range(20)]
    assert [seen.headers["Range"] for seen in stub.seen] == ["bytes=0-389"]


def test_ranges_far_apart_are_read_each_on_its_own(stub: Stub) -> None:
    stub.objects["/bucket/k"] = _BODY

    with S3Store(stub.options(coalesce_gap_nbytes=0)) as store:
        store.read_many([_read("k", 0, 10), _read("k", 11, 10)])

    assert sorted(seen.headers["Range"] for seen in stub.seen) == ["bytes=0-9", "bytes=11-20"]


def test_one_request_answers_each_of_its_ranges(stub: Stub) -> None:
    stub.objects["/bucket/k"] = _BODY
    filled: list[int] = []
    reads = [
        RangeRead("k", 900, [bytearray(50)], object_nbytes=1000, on_filled=filled.append),
        RangeRead("k", 950, [bytearray(10)], object_nbytes=999),
        RangeRead("k", 960, [bytearray(20), bytearray(20)]),
        RangeRead("k", 1000, [bytearray(1)]),
        RangeRead("k", 1001, [bytearray(9)], object_nbytes=2000),
    ]

    with S3Store(stub.options()) as store:
        outcomes = store.read_many(reads)

    assert len(stub.seen) == 1
    assert [type(outcome.error) for outcome in outcomes] == [
        type(None), CorruptObject, type(None), RangeError, CorruptObject
    ]  # fmt: skip
    assert b"".join(reads[0].targets) == _BODY[900:950]
    assert b"".join(reads[2].targets) == _BODY[960:]
    assert filled == [50]


def test_ranges_behind_the_end_are_told_apart(stub: Stub) -> None:
    stub.objects["/bucket/k"] = _BODY

    with S3Store(stub.options()) as store:
        outcomes = store.read_many([_read("k", 1000, 1), RangeRead("k", 1001, [bytearray(1)], object_nbytes=5)])

    assert [type(outcome.error) for outcome in outcomes] == [RangeError, CorruptObject]


def test_a_missing_object_is_a_miss_for_each_of_its_ranges(stub: Stub) -> None:
    with S3Store(stub.options()) as store:
        assert store.read_many([_read("k", 0, 10), _read("k", 10, 10)]) == [MISS, MISS]


def test_ranges_before_the_break_are_hits(stub: Stub) -> None:
    # The line breaks in the middle of one answer to two requests.
    stub.objects["/bucket/k"] = _BODY
    target = poisoned(10)
    stub.script = lambda seen: Reply(206, _BODY[:15], {"Content-Range": "bytes 0-19/1000"}, claimed_nbytes=20)

    with S3Store(stub.options()) as store:
        outcomes = store.read_many([RangeRead("k", 0, [target]), _read("k", 10, 10)])

    assert [outcome.status for outcome in outcomes] == [Status.HIT, Status.FAILED]
    assert target == _BODY[:10]


def test_a_refused_request_fails_all_of_its_ranges(stub: Stub) -> None:
    stub.script = lambda seen: refused(503, "SlowDown")

    with S3Store(stub.options()) as store:
        outcomes = store.read_many([_read("k", 0, 10), _read("k", 10, 10)])

    assert [outcome.status for outcome in outcomes] == [Status.FAILED] * 2
