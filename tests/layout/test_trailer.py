"""Any change of any byte is found, for every range of blocks, and a proof belongs to one key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_storage.errors import LayoutError
from hicache_storage.layout import FOOTER_NBYTES, Footer, RangeVerifier, block_nbytes, build_trailer, trailer_nbytes

BLOCK = 4096
PAYLOAD = bytes(range(256)) * 40 + b"the last block is short"


def verify(key: str, payload: bytes, trailer: bytes, first: int = 0, stop: int | None = None) -> str | None:
    filled = memoryview(payload)[first * BLOCK : None if stop is None else stop * BLOCK]
    return RangeVerifier(key, BLOCK, len(payload), first, filled).mismatch(memoryview(trailer))


@pytest.mark.parametrize(("cell", "block"), [(1, 4096), (96, 4128), (4095, 8190), (4096, 4096), (65536, 65536)])
def test_block_is_the_fewest_cells_of_four_kibibytes(cell: int, block: int) -> None:
    assert block_nbytes(cell) == block


def test_trailer_length_follows_from_the_sizes() -> None:
    assert len(build_trailer("k", memoryview(PAYLOAD), BLOCK)) == trailer_nbytes(len(PAYLOAD), BLOCK) == 3 * 8 + 40


@pytest.mark.parametrize(("first", "stop"), [(0, 3), (0, 1), (1, 2), (1, 3), (2, 3), (1, 1)])
def test_every_range_of_blocks_verifies_alone(first: int, stop: int) -> None:
    trailer = build_trailer("k", memoryview(PAYLOAD), BLOCK)

    assert verify("k", PAYLOAD, trailer, first, stop) is None


@given(st.integers(0, len(PAYLOAD) + 63), st.integers(1, 255))
def test_any_flipped_bit_is_found(position: int, mask: int) -> None:
    stored = bytearray(PAYLOAD + build_trailer("k", memoryview(PAYLOAD), BLOCK))
    stored[position] ^= mask

    assert verify("k", bytes(stored[: len(PAYLOAD)]), bytes(stored[len(PAYLOAD) :])) is not None


def test_flipped_bit_in_another_block_does_not_fail_this_range() -> None:
    trailer = build_trailer("k", memoryview(PAYLOAD), BLOCK)
    damaged = bytearray(PAYLOAD)
    damaged[0] ^= 1

    assert verify("k", bytes(damaged), trailer, 1, 3) is None
    assert "block 0" in str(verify("k", bytes(damaged), trailer, 0, 1))


def test_swapped_blocks_are_found() -> None:
    payload = bytes(4096) + bytes([1]) * 4096
    trailer = build_trailer("k", memoryview(payload), BLOCK)

    assert verify("k", payload[4096:] + payload[:4096], trailer) is not None


def test_object_under_another_name_is_found() -> None:
    trailer = build_trailer("k", memoryview(PAYLOAD), BLOCK)

    assert "another key" in str(verify("other", PAYLOAD, trailer))


def test_trailer_of_another_plan_is_found() -> None:
    other = build_trailer("k", memoryview(PAYLOAD), 2 * BLOCK)

    assert verify("k", PAYLOAD, other) is not None


def test_hints_while_reading_change_nothing() -> None:
    trailer = memoryview(build_trailer("k", memoryview(PAYLOAD), BLOCK))
    verifier = RangeVerifier("k", BLOCK, len(PAYLOAD), 0, memoryview(PAYLOAD))

    for filled in (0, 10, 4096, 4100, 9000, len(PAYLOAD), len(PAYLOAD) + 64):
        verifier.advance(filled)

    assert verifier.mismatch(trailer) is None


def test_hint_does_not_hash_bytes_that_are_not_there_yet() -> None:
    trailer = memoryview(build_trailer("k", memoryview(PAYLOAD), BLOCK))
    target = bytearray(len(PAYLOAD))
    verifier = RangeVerifier("k", BLOCK, len(PAYLOAD), 0, memoryview(target))

    target[:5000] = PAYLOAD[:5000]
    verifier.advance(5000)
    target[:] = PAYLOAD

    assert verifier.mismatch(trailer) is None


def test_range_that_is_filled_again_is_hashed_again() -> None:
    trailer = memoryview(build_trailer("k", memoryview(PAYLOAD), BLOCK))
    target = bytearray(PAYLOAD)
    verifier = RangeVerifier("k", BLOCK, len(PAYLOAD), 0, memoryview(target))
    verifier.advance(8192)

    target[0] ^= 1
    verifier.advance(0)

    assert verifier.mismatch(trailer) is not None


def test_footer_says_the_sizes_to_whoever_has_only_the_object() -> None:
    stored = PAYLOAD + build_trailer("k", memoryview(PAYLOAD), BLOCK)

    assert Footer.parse(stored[-FOOTER_NBYTES:], len(stored)) == Footer(BLOCK, len(PAYLOAD))


@pytest.mark.parametrize("change", ["magic", "version", "sizes", "length"])
def test_footer_that_is_none_is_refused(change: str) -> None:
    stored = bytearray(PAYLOAD + build_trailer("k", memoryview(PAYLOAD), BLOCK))
    tail = stored[-FOOTER_NBYTES:]
    if change == "magic":
        tail[0] ^= 1
    elif change == "version":
        tail[8] ^= 2
    elif change == "length":
        del tail[0]

    with pytest.raises(LayoutError):
        Footer.parse(tail, len(stored) + (change == "sizes"))


PARTS = st.lists(st.integers(1, len(PAYLOAD)), max_size=12)


def cut(payload: bytes, lengths: list[int]) -> list[memoryview]:
    """Return *payload* in parts of *lengths*, the last one taking the rest."""
    parts, start = [], 0
    for length in [*lengths, len(payload)]:
        if payload[start : start + length]:
            parts.append(memoryview(bytes(payload[start : start + length])))
        start += length
    return parts


@given(PARTS)
def test_payload_in_parts_has_the_trailer_of_the_whole(lengths: list[int]) -> None:
    assert build_trailer("k", cut(PAYLOAD, lengths), BLOCK) == build_trailer("k", memoryview(PAYLOAD), BLOCK)


@given(PARTS, st.lists(st.integers(0, len(PAYLOAD) + 64), max_size=8))
def test_range_in_parts_verifies_whatever_the_hints(lengths: list[int], hints: list[int]) -> None:
    trailer = memoryview(build_trailer("k", memoryview(PAYLOAD), BLOCK))
    verifier = RangeVerifier("k", BLOCK, len(PAYLOAD), 0, cut(PAYLOAD, lengths))

    for filled in hints:
        verifier.advance(filled)

    assert verifier.mismatch(trailer) is None


@given(PARTS, st.integers(0, len(PAYLOAD) - 1), st.integers(1, 255))
def test_any_flipped_bit_is_found_in_parts(lengths: list[int], position: int, mask: int) -> None:
    trailer = memoryview(build_trailer("k", memoryview(PAYLOAD), BLOCK))
    damaged = bytearray(PAYLOAD)
    damaged[position] ^= mask

    assert RangeVerifier("k", BLOCK, len(PAYLOAD), 0, cut(bytes(damaged), lengths)).mismatch(trailer) is not None
