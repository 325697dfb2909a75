"""Cutting transfers into buffers and pieces."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from hicache_storage.backends.file.io import IOV_MAX, PIECE_NBYTES, flat_views, read_range, window, write_all
from hicache_storage.types import ObjectWrite

TRAILER_NBYTES = 200


@pytest.mark.parametrize("seed", range(10))
def test_a_window_is_a_slice_of_the_concatenation(seed: int) -> None:
    rng = random.Random(seed)
    views = flat_views([rng.randbytes(rng.randrange(20)) for _ in range(12)])
    whole = b"".join(views)

    for _ in range(100):
        start, nbytes = rng.randrange(len(whole)), rng.randrange(len(whole))
        assert b"".join(window(views, start, nbytes)) == whole[start : start + nbytes]


def test_a_window_has_no_more_buffers_than_one_call_takes() -> None:
    views = flat_views([b"x"] * (IOV_MAX + 5))

    assert len(window(views, 0, len(views))) == IOV_MAX


def test_buffers_of_any_shape_become_flat_bytes() -> None:
    grid = memoryview(bytearray(range(24))).cast("B", (2, 3, 4))
    words = memoryview(bytearray(8)).cast("I")

    assert [len(view) for view in flat_views([grid, words, b"", memoryview(b"")])] == [24, 8]


@pytest.mark.parametrize(
    ("payload_nbytes", "steps"),
    [
        (PIECE_NBYTES, [PIECE_NBYTES + TRAILER_NBYTES]),
        (PIECE_NBYTES // 16, [PIECE_NBYTES // 16 + TRAILER_NBYTES]),
        (2 * PIECE_NBYTES, [PIECE_NBYTES, 2 * PIECE_NBYTES + TRAILER_NBYTES]),
        (3 * PIECE_NBYTES - 1, [PIECE_NBYTES, 2 * PIECE_NBYTES, 3 * PIECE_NBYTES - 1 + TRAILER_NBYTES]),
    ],
)
def test_a_caller_can_hash_piece_by_piece_and_a_trailer_costs_no_piece(
    tmp_path: Path, payload_nbytes: int, steps: list[int]
) -> None:
    nbytes = payload_nbytes + TRAILER_NBYTES
    (tmp_path / "object").write_bytes(os.urandom(nbytes))
    fd = os.open(tmp_path / "object", os.O_RDONLY)
    seen: list[int] = []

    got = read_range(fd, 0, [bytearray(payload_nbytes), bytearray(TRAILER_NBYTES)], nbytes, True, seen.append)

    os.close(fd)
    assert got == nbytes
    assert seen == steps


def test_what_goes_to_many_places_comes_piece_by_piece_and_its_trailer_costs_no_piece(tmp_path: Path) -> None:
    body = os.urandom(2 * PIECE_NBYTES + TRAILER_NBYTES)
    (tmp_path / "object").write_bytes(body)
    fd = os.open(tmp_path / "object", os.O_RDONLY)
    targets = [bytearray(PIECE_NBYTES // 8) for _ in range(16)] + [bytearray(TRAILER_NBYTES)]
    seen: list[int] = []

    got = read_range(fd, 0, targets, len(body), True, seen.append)

    os.close(fd)
    assert (got, b"".join(targets)) == (len(body), body)
    assert seen == [PIECE_NBYTES, len(body)]


def test_a_trailer_behind_places_of_odd_sizes_costs_no_piece(tmp_path: Path) -> None:
    sizes = [PIECE_NBYTES * 3 // 4, PIECE_NBYTES * 3 // 4, TRAILER_NBYTES]
    (tmp_path / "object").write_bytes(os.urandom(sum(sizes)))
    fd = os.open(tmp_path / "object", os.O_RDONLY)
    seen: list[int] = []

    read_range(fd, 0, [bytearray(size) for size in sizes], sum(sizes), True, seen.append)

    os.close(fd)
    assert seen == [sum(sizes)]


@pytest.mark.parametrize("seed", range(30))
def test_many_places_are_filled_like_one(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    sizes = [
        rng.choice([1, 100, PIECE_NBYTES // 3, PIECE_NBYTES, 2 * PIECE_NBYTES]) for _ in range(rng.randrange(1, 9))
    ]
    nbytes = sum(sizes)
    body = rng.randbytes(max(0, nbytes + rng.choice([-PIECE_NBYTES, -1, 0, 0, 1, 50])))
    (tmp_path / "object").write_bytes(body)
    fd = os.open(tmp_path / "object", os.O_RDONLY)
    targets = [bytearray(size) for size in sizes]
    seen: list[int] = []

    got = read_range(fd, 0, targets, nbytes, True, seen.append)

    os.close(fd)
    assert got == min(len(body), nbytes + 1)
    assert b"".join(targets)[: len(body)] == body[:nbytes]
    assert seen == sorted(set(seen))
    assert max(seen, default=0) <= min(got, nbytes)


@pytest.mark.parametrize(
    ("extra_nbytes", "got_nbytes"), [(-1, 999_999), (0, 1_000_000), (1, 1_000_001), (9, 1_000_001)]
)
@pytest.mark.parametrize("piecewise", [False, True])
def test_the_file_end_is_found_without_asking_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra_nbytes: int, got_nbytes: int, piecewise: bool
) -> None:
    (tmp_path / "object").write_bytes(bytes(1_000_000 + extra_nbytes))
    fd = os.open(tmp_path / "object", os.O_RDONLY)
    seen: list[int] = []

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", None)
        got = read_range(fd, 0, [bytearray(1_000_000)], 1_000_000, True, seen.append if piecewise else None)

    os.close(fd)
    assert got == got_nbytes
    assert max(seen, default=0) <= 1_000_000


def test_more_parts_than_one_call_takes_are_written(tmp_path: Path) -> None:
    parts = [bytes([i % 251]) * (i % 3) for i in range(3 * IOV_MAX)]
    fd = os.open(tmp_path / "object", os.O_WRONLY | os.O_CREAT)

    write_all(fd, ObjectWrite("k", parts))

    os.close(fd)
    assert (tmp_path / "object").read_bytes() == b"".join(parts)


class Counting:
    """A tail that notes when it is told what."""

    nbytes = 5

    def __init__(self) -> None:
        self.told: list[int] = []

    def advance(self, nbytes: int) -> None:
        self.told.append(nbytes)

    def finish(self) -> bytes:
        return b"tail!"


@pytest.mark.parametrize("moved", [1, 1000])
def test_what_the_kernel_moves_in_small_steps_is_moved_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    body = random.Random(moved).randbytes(3000)
    preadv, pwritev = os.preadv, os.pwritev
    monkeypatch.setattr(os, "preadv", lambda fd, to, at: preadv(fd, window(flat_views(to), 0, moved), at))
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: pwritev(fd, window(flat_views(parts), 0, moved), at))
    fd = os.open(tmp_path / "object", os.O_RDWR | os.O_CREAT)
    targets = [bytearray(1300), bytearray(1700)]

    write_all(fd, ObjectWrite("k", [body[:1000], body[1000:]]))
    got = read_range(fd, 0, targets, len(body), True, None)

    os.close(fd)
    assert (got, b"".join(targets)) == (len(body), body)


@pytest.mark.parametrize("places", [2, IOV_MAX, IOV_MAX + 1, 2 * IOV_MAX + 1])
def test_a_file_that_is_too_long_is_found_out_also_after_a_short_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    (tmp_path / "object").write_bytes(bytes(places + 1))
    steps = iter([1])
    preadv = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda fd, to, at: preadv(fd, window(flat_views(to), 0, next(steps, IOV_MAX * 2)), at)
    )
    fd = os.open(tmp_path / "object", os.O_RDONLY)
    seen: list[int] = []

    got = read_range(fd, 0, [bytearray(1) for _ in range(places)], places, True, seen.append)

    os.close(fd)
    assert got == places + 1
    assert seen == sorted(set(seen))


def test_places_of_odd_sizes_are_written_in_order_with_a_tail(tmp_path: Path) -> None:
    rng = random.Random(4)
    parts = [rng.randbytes(rng.choice([0, 1, PIECE_NBYTES // 3, PIECE_NBYTES, 2 * PIECE_NBYTES])) for _ in range(20)]
    fd = os.open(tmp_path / "object", os.O_WRONLY | os.O_CREAT)
    tail = Counting()

    write_all(fd, ObjectWrite("k", parts, tail))

    os.close(fd)
    assert (tmp_path / "object").read_bytes() == b"".join(parts) + b"tail!"
    assert tail.told == sorted(set(tail.told))
    assert tail.told[-1] == sum(map(len, parts))


@pytest.mark.parametrize("nbytes", [0, 1, PIECE_NBYTES, 3 * PIECE_NBYTES + 7])
def test_tail_follows_the_payload_and_is_told_of_every_piece(tmp_path: Path, nbytes: int) -> None:
    payload = random.Random(nbytes).randbytes(nbytes)
    fd = os.open(tmp_path / "object", os.O_WRONLY | os.O_CREAT)
    tail = Counting()

    write_all(fd, ObjectWrite("k", [payload[:10], payload[10:]], tail))

    os.close(fd)
    assert (tmp_path / "object").read_bytes() == payload + b"tail!"
    assert tail.told == sorted(set(tail.told))
    assert max(tail.told, default=0) == nbytes
    assert len(tail.told) == -(-nbytes // PIECE_NBYTES) or nbytes % PIECE_NBYTES == 7
