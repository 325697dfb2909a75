"""Keys hold whole pages and compare page by page."""

from __future__ import annotations

import random
from array import array

import pytest

from hicache_storage.engine_integration.radix import Key, reusable_pages
from hicache_storage.engine_integration.radix.key import shared_pages
from hicache_storage.errors import LayoutError
from hicache_storage.layout import pack_tokens, packed_page_hashes, page_hashes


def test_a_last_page_that_is_not_full_is_left_out() -> None:
    assert Key.of(range(11), 4) == Key.of(range(8), 4)
    assert Key.of(range(3), 4).num_pages == 0


def test_the_container_of_the_tokens_does_not_matter() -> None:
    ids = [1, 2**32 - 1, 3, 4]

    keys = {Key.of(ids, 2), Key.of(tuple(ids), 2), Key.of(array("q", ids), 2), Key.of(array("I", ids), 2)}

    assert len(keys) == 1


@pytest.mark.parametrize("token", [-1, 2**32, "7"])
def test_a_token_that_is_no_32_bit_id_is_refused(token: object) -> None:
    with pytest.raises(LayoutError, match="token ids"):
        Key.of([token], 1)  # type: ignore[list-item]


def test_a_scope_that_is_no_seed_is_refused() -> None:
    """Seeds have one length, so that no scope's first page can spell another's."""
    with pytest.raises(LayoutError, match="no page hash"):
        Key.of([1], 1, seed="tenant")


def test_a_page_of_no_token_is_refused() -> None:
    with pytest.raises(LayoutError, match="page_tokens = 0"):
        Key.of([1], 0)


@pytest.mark.parametrize(
    ("prompt", "page_tokens", "pages"),
    [(0, 16, 0), (1, 1, 0), (16, 16, 0), (17, 16, 1), (32, 16, 1), (200_000, 1, 199_999)],
)
def test_a_cached_prompt_leaves_at_least_one_token_to_compute(prompt: int, page_tokens: int, pages: int) -> None:
    assert reusable_pages(prompt, page_tokens) == pages
    assert prompt - pages * page_tokens >= min(prompt, 1)


def test_a_key_is_cut_to_its_first_pages() -> None:
    assert Key.of(range(12), 4).first(2) == Key.of(range(8), 4)
    assert Key.of(range(8), 4).first(9) == Key.of(range(8), 4)


@pytest.mark.parametrize("page_tokens", [1, 3, 16])
def test_shared_pages_are_those_that_a_comparison_token_by_token_finds(rng: random.Random, page_tokens: int) -> None:
    for _ in range(300):
        ours = [rng.randrange(3) for _ in range(rng.randrange(40) * page_tokens)]
        theirs = ours[: rng.randrange(len(ours) + 1)] + [rng.randrange(3) for _ in range(rng.randrange(60))]
        theirs = theirs[: len(theirs) // page_tokens * page_tokens]
        skipped = rng.randrange(3)
        same = next(
            (at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
        )

        shared = shared_pages(
            pack_tokens([9] * skipped * page_tokens + ours),
            4 * skipped * page_tokens,
            pack_tokens(theirs),
            4 * page_tokens,
        )

        assert shared == same // page_tokens


def test_a_hash_chain_is_continued_from_the_last_page_known() -> None:
    whole = page_hashes(range(64), 16)

    start = packed_page_hashes(pack_tokens(range(32)), 16)
    rest = packed_page_hashes(pack_tokens(range(32, 64)), 16, prior=start[-1])

    assert start + rest == whole
