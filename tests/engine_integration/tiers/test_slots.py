"""The books of a tier are exact, whatever its users do."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from hicache_storage.engine_integration.tiers.slots import PageAllocator, contiguous_runs
from hicache_storage.errors import InvariantError, TierFull
from hicache_storage.testing.hooks import at_once

CAPACITY = 64


@pytest.fixture
def books() -> PageAllocator:
    """A tier of 8 pages of which 0 to 5 are held and 4 and 5 are pinned."""
    books = PageAllocator(8)
    books.pin(books.allocate(6)[4:])
    return books


def state_of(books: PageAllocator) -> tuple[list[bool], list[bool], int]:
    return (
        [books.is_held(page) for page in range(books.capacity)],
        [books.is_pinned(page) for page in range(books.capacity)],
        books.num_free,
    )


def test_pages_come_lowest_first_and_ascending() -> None:
    books = PageAllocator(8)

    assert books.allocate(3) == [0, 1, 2]
    assert books.allocate(2) == [3, 4]
    assert (books.num_free, books.num_held) == (3, 5)


def test_a_run_that_is_long_enough_is_preferred_to_lower_holes() -> None:
    books = PageAllocator(40)
    books.allocate(24)
    books.free([1, 3, 5, *range(8, 17)])

    assert books.allocate(9) == list(range(8, 17))


def test_what_fits_no_run_is_made_of_the_longest_ones() -> None:
    books = PageAllocator(64)
    books.allocate(64)
    books.free([*range(1, 9), 11, *range(20, 44)])

    pages = books.allocate(32)

    assert pages == [*range(1, 9), *range(20, 44)]


def test_the_last_page_can_be_had() -> None:
    books = PageAllocator(16)
    books.allocate(16)
    books.free(range(0, 16, 2))

    assert books.allocate(8) == list(range(0, 16, 2))
    assert books.num_free == 0


def test_too_many_pages_are_refused_with_both_numbers() -> None:
    books = PageAllocator(8)
    books.allocate(5)

    with pytest.raises(TierFull, match="4 pages wanted, 3 of 8 are free"):
        books.allocate(4)

    assert books.num_free == 3
    books.check()


def test_no_pages_are_an_answer() -> None:
    books = PageAllocator(1)

    assert books.allocate(0) == []
    books.free([])


@pytest.mark.parametrize("capacity", [0, -1])
def test_an_empty_tier_is_refused(capacity: int) -> None:
    with pytest.raises(InvariantError):
        PageAllocator(capacity)


def test_a_negative_number_of_pages_is_refused() -> None:
    with pytest.raises(InvariantError):
        PageAllocator(1).allocate(-1)


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        pytest.param([0, 6], r"page\(s\) 6: not held", id="free page"),
        pytest.param([0, 1, 0], r"page\(s\) 0: named twice", id="duplicate"),
        pytest.param([0, 8], r"page\(s\) 8: the tier has pages \[0, 8\)", id="out of range"),
        pytest.param([0, -1], r"page\(s\) -1: the tier has pages", id="negative"),
        pytest.param([0, 4], r"page\(s\) 4: pinned", id="pinned"),
        pytest.param(range(80), r"and 64 more", id="many"),
    ],
)
def test_a_wrong_free_raises_and_changes_nothing(books: PageAllocator, pages: list[int], reason: str) -> None:
    before = state_of(books)

    with pytest.raises(InvariantError, match=reason):
        books.free(pages)

    assert state_of(books) == before
    books.check()


@pytest.mark.parametrize(
    ("act", "pages"),
    [
        pytest.param(PageAllocator.pin, [0, 6], id="pin a free page"),
        pytest.param(PageAllocator.pin, [0, 8], id="pin a foreign page"),
        pytest.param(PageAllocator.pin, [0, 0], id="pin twice in one call"),
        pytest.param(PageAllocator.unpin, [4, 0], id="unpin a page that is not pinned"),
        pytest.param(PageAllocator.unpin, [4, -1], id="unpin a foreign page"),
        pytest.param(PageAllocator.unpin, [4, 4], id="unpin twice in one call"),
    ],
)
def test_a_wrong_pin_raises_and_changes_nothing(
    books: PageAllocator, act: Callable[[PageAllocator, list[int]], None], pages: list[int]
) -> None:
    before = state_of(books)

    with pytest.raises(InvariantError):
        act(books, pages)

    assert state_of(books) == before


def test_a_page_pinned_twice_is_free_after_two_unpins(books: PageAllocator) -> None:
    books.pin([4])
    books.unpin([4])

    with pytest.raises(InvariantError, match="pinned"):
        books.free([4])

    books.unpin([4])
    books.free([4])
    assert not books.is_held(4)


def test_equal_ids_from_a_tensor_count_as_equal(books: PageAllocator) -> None:
    with pytest.raises(InvariantError, match="named twice"):
        books.free(torch.tensor([1, 1]))

    books.free(torch.tensor([1, 2]))
    assert books.num_free == 4


def test_reset_frees_everything_but_not_under_a_transfer(books: PageAllocator) -> None:
    with pytest.raises(InvariantError, match="4, 5 pinned"):
        books.reset()

    books.unpin([4, 5])
    books.reset()

    assert (books.num_free, books.num_held) == (8, 0)
    books.check()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda books: books._state.__setitem__(0, 0), id="a page freed behind the books"),
        pytest.param(lambda books: books._state.__setitem__(0, 7), id="an unknown state"),
        pytest.param(lambda books: setattr(books, "_num_free", 5), id="a wrong count"),
        pytest.param(lambda books: books._pins.__setitem__(7, 1), id="a free page pinned"),
        pytest.param(lambda books: books._pins.__setitem__(0, 0), id="a pin of no transfer"),
    ],
)
def test_check_finds_damage(books: PageAllocator, damage: Callable[[PageAllocator], None]) -> None:
    books.check()
    damage(books)

    with pytest.raises(InvariantError):
        books.check()


def test_threads_never_get_the_same_page() -> None:
    books = PageAllocator(400)

    def churn() -> list[int]:
        for _ in range(50):
            books.free(books.allocate(100))
        return books.allocate(100)

    pages = [page for mine in at_once(churn, churn, churn, churn) for page in mine]

    assert sorted(pages) == list(range(400))
    books.check()


def test_equal_calls_give_equal_pages(rng: random.Random) -> None:
    ranks = [PageAllocator(CAPACITY), PageAllocator(CAPACITY)]
    held: list[int] = []

    for _ in range(500):
        if rng.random() < 0.5 and held:
            some = rng.sample(held, rng.randint(1, len(held)))
            held = [page for page in held if page not in some]
            for rank in ranks:
                rank.free(some)
        else:
            count = rng.randint(0, ranks[0].num_free)
            first, second = (rank.allocate(count) for rank in ranks)
            assert first == second
            held += first


@pytest.mark.parametrize(
    ("pages", "runs"),
    [
        ([], []),
        ([5], [(0, range(5, 6))]),
        ([3, 4, 5], [(0, range(3, 6))]),
        ([3, 4, 8, 9, 2], [(0, range(3, 5)), (2, range(8, 10)), (4, range(2, 3))]),
        ([5, 4, 3], [(0, range(5, 6)), (1, range(4, 5)), (2, range(3, 4))]),
    ],
)
def test_runs_are_as_long_as_neighbours_go(pages: list[int], runs: list[tuple[int, range]]) -> None:
    assert list(contiguous_runs(pages)) == runs


class Tier:
    """A tier's users, each operation as the engine does it, and a set that says what must be free."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.books = PageAllocator(CAPACITY)
        self.free = set(range(CAPACITY))
        self.nodes: list[list[int]] = []
        self.dead: list[list[int]] = []

    def allocate(self, count: int) -> list[int]:
        if count > len(self.free):
            with pytest.raises(TierFull):
                self.books.allocate(count)
            return []
        pages = self.books.allocate(count)
        assert len(set(pages)) == count
        assert set(pages) <= self.free
        self.free -= set(pages)
        return pages

    def release(self, pages: list[int]) -> None:
        self.books.free(pages)
        assert not self.free & set(pages)
        self.free |= set(pages)

    def insert(self) -> None:
        if pages := self.allocate(self.rng.randint(1, 9)):
            self.nodes.append(pages)

    def prefetch(self) -> None:
        """Four of six pages arrive: four go to the tree, just two are freed."""
        pages = self.allocate(6)
        if not pages:
            return
        self.books.pin(pages)
        with pytest.raises(InvariantError):
            self.books.free(pages[:1])
        self.books.unpin(pages)
        before = self.books.num_free
        self.release(pages[4:])
        assert self.books.num_free == before + 2
        self.nodes.append(pages[:4])

    def abort(self) -> None:
        pages = self.allocate(self.rng.randint(1, 9))
        self.release(pages)
        self.dead.append(pages)

    def evict(self) -> None:
        if self.nodes:
            pages = self.nodes.pop(self.rng.randrange(len(self.nodes)))
            self.release(pages)
            self.dead.append(pages)

    def free_again(self) -> None:
        """A page that is free, beside pages that are not: the call raises and frees none of them."""
        stale = [page for page in (self.dead.pop() if self.dead else []) if page in self.free]
        held = self.nodes[0] if self.nodes else []
        if stale:
            with pytest.raises(InvariantError):
                self.books.free([*held, *stale])

    def reset(self) -> None:
        if self.rng.random() < 0.05:
            self.books.reset()
            self.free = set(range(CAPACITY))
            self.nodes, self.dead = [], []


@pytest.mark.parametrize("seed", [20260801, 20260802, 20260803, 20260804])
def test_ten_thousand_operations_agree_with_a_set(seed: int) -> None:
    """F25."""
    print(f"seed {seed}")
    tier = Tier(random.Random(seed))
    operations = [tier.insert, tier.insert, tier.prefetch, tier.abort, tier.evict, tier.free_again, tier.reset]

    for _ in range(10_000):
        tier.rng.choice(operations)()

        assert tier.books.num_free == len(tier.free)
        assert tier.books.num_free + tier.books.num_held == CAPACITY
        tier.books.check()
    assert {page for page in range(CAPACITY) if not tier.books.is_held(page)} == tier.free


def test_runs_cover_what_was_allocated_in_order(rng: random.Random) -> None:
    books = PageAllocator(CAPACITY)
    books.free(rng.sample(books.allocate(CAPACITY), 40))

    pages = books.allocate(33)

    assert all(left < right for left, right in pairwise(pages))
    assert [page for _, run in contiguous_runs(pages) for page in run] == pages
