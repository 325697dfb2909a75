"""A random walk over everything that the tree can do, beside a dictionary of prefixes that does the same by hand."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from hicache_storage.engine_integration.options import EvictionPolicy
from hicache_storage.engine_integration.radix import Direction, Eviction, Match, Node, RadixTree, Tier, Transfer, check
from hicache_storage.layout import request_seed
from tests.engine_integration.radix.pages import PAGE_TOKENS, Pool, hashes, key

Prefix = tuple[str | None, str]
"""Scope and letters: stands for the last page of those letters."""

SEEDS = (None, request_seed(cache_salt="a"))


class Walk:
    """The tree, its pools, and what a dictionary says should be in it.

    Attributes:
        model: prefix -> page id by tier.
        bytes_of: page id -> the hash of what lies there, carried from page to page by transfers.
        store: hashes that L3 holds.
    """

    def __init__(self, rng: random.Random, policy: EvictionPolicy) -> None:
        self.rng = rng
        self.tree = RadixTree(PAGE_TOKENS, eviction=policy, host_eviction=policy)
        self.pools = (Pool(26), Pool(34, first=100_000))
        self.now = 0
        self.model: dict[Prefix, dict[Tier, int]] = {}
        self.bytes_of: dict[int, str] = {}
        self.store: set[str] = set()
        self.locks: list[tuple[Node, Tier, list[Prefix]]] = []
        self.transfers: list[tuple[Transfer, list[Prefix]]] = []
        once: list[Callable[[], object]] = [self.fetch, self.use, self.lock, self.write, self.forget]
        twice: list[Callable[[], object]] = [
            self.insert,
            self.unlock,
            self.back_up,
            self.load,
            self.end,
            self.make_room,
        ]
        self.steps = once + 2 * twice

    def step(self) -> None:
        self.now += 1
        self.rng.choice(self.steps)()
        check(self.tree, device_pages=self.pools[0].held, host_pages=self.pools[1].held, hashes=self.now % 16 == 0)
        self.compare()

    def compare(self) -> None:
        """Hold the whole tree against the dictionary, and one match against both."""
        found: dict[Prefix, dict[Tier, int]] = {}
        for node in self.tree.books.nodes():
            letters = spelled(node)
            for tier in Tier:
                for at, page in enumerate(node.tiers[tier].pages or ()):
                    found.setdefault((node.seed, letters[: node.first_page + at + 1]), {})[tier] = page
        assert found == self.model
        seed, letters = self.prompt()
        self.check_match(self.tree.match(key(letters, seed)), seed, letters)

    def check_match(self, match: Match, seed: str | None, letters: str) -> None:
        prefixes = [(seed, letters[:count]) for count in range(1, len(letters) + 1)]
        known = [self.model[prefix] for prefix in prefixes if prefix in self.model]
        device = [pages[Tier.DEVICE] for pages in known if Tier.DEVICE in pages]
        assert match.device_pages().tolist() == device
        assert match.host_pages().tolist() == [pages[Tier.HOST] for pages in known[len(device) :]]
        names = hashes(letters, seed)
        still_loading = {page for load in match.loads for page in load.target}
        for page, name in zip([*match.device_pages(), *match.host_pages()], names, strict=False):
            assert page in still_loading or self.bytes_of[page] == name
        assert self.store.issuperset(names[: match.num_stored])

    def prompt(self) -> Prefix:
        return self.rng.choice(SEEDS), "".join(self.rng.choices("ABC", weights=(5, 2, 1), k=self.rng.randrange(9)))

    def insert(self) -> None:
        """Match, keep what was found, compute the rest and insert, as a request does."""
        seed, letters = self.prompt()
        found = self.tree.match_and_split(key(letters, seed), self.now)
        with self.keeping(found):
            first = self.rng.randrange(found.num_device + 1)
            brought = self.take(Tier.DEVICE, len(letters) - first)
            if brought is not None:
                self.insert_pages(seed, letters, first, brought)

    def insert_pages(self, seed: str | None, letters: str, first: int, brought: list[int]) -> None:
        self.fill(brought, hashes(letters, seed)[first:])
        prefixes = [(seed, letters[: first + at + 1]) for at in range(len(brought))]
        twice = [page for page, prefix in zip(brought, prefixes, strict=True) if Tier.DEVICE in self.at(prefix)]
        done = self.tree.insert(key(letters, seed), brought, self.now, first_page=first, priority=self.rng.randrange(2))
        assert done.unused.tolist() == twice
        self.adopt(Tier.DEVICE, brought, prefixes)
        self.free(Tier.DEVICE, twice)

    def fetch(self) -> None:
        """Insert what L3 has behind a prefix, whether the prefix is still there or not."""
        seed, letters = self.prompt()
        names = hashes(letters, seed)
        first = self.rng.randrange(len(letters) + 1)
        if not self.store.issuperset(names):
            return
        brought = self.take(Tier.HOST, len(letters) - first)
        if brought is None:
            return
        self.fill(brought, names[first:])
        prefixes = [(seed, letters[: first + at + 1]) for at in range(len(brought))]
        is_reached = first == 0 or (seed, letters[:first]) in self.model
        underway = {p for t, ps in self.transfers if t.direction is Direction.BACKUP for p in ps}
        unused = [
            page
            for page, prefix in zip(brought, prefixes, strict=True)
            if not is_reached or Tier.HOST in self.at(prefix) or prefix in underway
        ]
        done = self.tree.insert_host(key(letters, seed), brought, self.now, first_page=first)
        assert done.unused.tolist() == unused
        taken = {page: prefix for page, prefix in zip(brought, prefixes, strict=True) if page not in unused}
        self.adopt(Tier.HOST, taken, taken.values())
        self.free(Tier.HOST, unused)

    def use(self) -> Match:
        seed, letters = self.prompt()
        match = self.tree.match_and_split(key(letters, seed), self.now)
        self.check_match(match, seed, letters)
        return match

    def lock(self) -> None:
        tier = self.rng.choice(list(Tier))
        found = self.use()
        node = found.device_node if tier is Tier.DEVICE else found.last_node
        self.tree.lock(node, tier)
        self.locks.append((node, tier, prefixes_of(node)))

    @contextmanager
    def keeping(self, found: Match) -> Iterator[None]:
        """Lock what was found in both tiers meanwhile."""
        kept = [(found.device_node, Tier.DEVICE), (found.last_node, Tier.HOST)]
        for node, tier in kept:
            self.tree.lock(node, tier)
            self.locks.append((node, tier, prefixes_of(node)))
        yield
        del self.locks[-2:]
        for node, tier in kept:
            self.tree.unlock(node, tier)

    def unlock(self) -> None:
        if self.locks:
            node, tier, _ = self.locks.pop(self.rng.randrange(len(self.locks)))
            self.tree.unlock(node, tier)

    def back_up(self) -> None:
        found = self.use()
        with self.keeping(found):
            nodes = [node for node in self.tree.unbacked(found.last_node) if node.device.pages is not None]
            nodes = nodes[: self.rng.randrange(1, 4)]
            pages = self.take(Tier.HOST, sum(node.num_pages for node in nodes)) if nodes else None
            if pages is not None:
                self.begin(self.tree.transfers.begin_backup(nodes, pages))

    def load(self) -> None:
        found = self.use()
        with self.keeping(found):
            nodes = self.tree.unloaded(found.last_node)
            pages = self.take(Tier.DEVICE, sum(node.num_pages for node in nodes)) if nodes else None
            if pages is not None:
                self.begin(self.tree.transfers.begin_load(nodes, pages))
                self.adopt(Tier.DEVICE, pages, self.transfers[-1][1])

    def write(self) -> None:
        nodes = self.tree.unstored(self.use().last_node)
        if nodes:
            self.begin(self.tree.transfers.begin_store(nodes))

    def begin(self, transfer: Transfer) -> None:
        self.transfers.append((transfer, [p for node in transfer.nodes for p in prefixes_of(node)[-node.num_pages :]]))

    def end(self, which: int | None = None) -> None:
        """End a running transfer; its bytes move now, from the pages that it named at its start."""
        if not self.transfers:
            return
        transfer, prefixes = self.transfers.pop(self.rng.randrange(len(self.transfers)) if which is None else which)
        if self.rng.random() < 0.2 and transfer.direction is not Direction.LOAD:
            self.free(Tier.HOST, self.tree.transfers.abort(transfer))
            return
        names = [hashes(letters, seed)[-1] for seed, letters in prefixes]
        assert [self.bytes_of[page] for page in transfer.source] == names
        if transfer.direction is Direction.STORE:
            assert list(transfer.hashes) == names
            written = self.rng.choice([len(names), self.rng.randrange(len(names) + 1)])
            self.store |= set(names[:written])
            self.tree.transfers.complete(transfer, num_stored=written)
            return
        self.fill(transfer.target, names)
        self.tree.transfers.complete(transfer)
        if transfer.direction is Direction.BACKUP:
            self.adopt(Tier.HOST, transfer.target, prefixes)

    def make_room(self) -> None:
        """Evict from one of the tiers; where that asks for it, write back first and evict again."""
        tier, count = self.rng.choice(list(Tier)), self.rng.randrange(12)
        for node in self.evict(tier, count).write_back:
            if node.num_pages > len(self.pools[Tier.HOST].free_pages):
                return
            self.begin(self.tree.transfers.begin_backup([node], self.pools[Tier.HOST].take(node.num_pages)))
            self.end(-1)
        self.evict(tier, count)

    def forget(self) -> None:
        if self.rng.random() < 0.1:
            self.tree.forget_stored()

    def at(self, prefix: Prefix) -> dict[Tier, int]:
        return self.model.get(prefix, {})

    def take(self, tier: Tier, count: int) -> list[int] | None:
        """Return pages, after an eviction if need be; None where that was not enough."""
        short = count - len(self.pools[tier].free_pages)
        if short > 0:
            self.evict(tier, short)
        return self.pools[tier].take(count) if count <= len(self.pools[tier].free_pages) else None

    def evict(self, tier: Tier, count: int) -> Eviction:
        most = self.tree.num_evictable(tier, copies=True)
        keep, copies = self.rng.random() < 0.8, self.rng.random() < 0.5
        gone = self.tree.evict(tier, count, lose_unbacked=not keep, copies=copies)
        kept = {prefix for _, which, prefixes in self.locks for prefix in prefixes if which is tier}
        taken = gone.device_pages if tier is Tier.DEVICE else gone.host_pages
        assert len(taken) <= min(most, count)
        if tier is Tier.DEVICE and keep:
            assert gone.lost_pages == 0
            assert not gone.write_back or len(taken) < count
        of_page = {page: (prefix, which) for prefix, pages in self.model.items() for which, page in pages.items()}
        for page in [*gone.device_pages, *gone.host_pages]:
            prefix, which = of_page[page]
            assert which is not tier or prefix not in kept
            del self.model[prefix][which]
            if not self.model[prefix]:
                del self.model[prefix]
        self.free(Tier.DEVICE, gone.device_pages)
        self.free(Tier.HOST, gone.host_pages)
        return gone

    def fill(self, pages: Iterable[int], names: Iterable[str]) -> None:
        self.bytes_of.update(zip(pages, names, strict=True))

    def adopt(self, tier: Tier, pages: Iterable[int], prefixes: Iterable[Prefix]) -> None:
        for page, prefix in zip(pages, prefixes, strict=True):
            self.model.setdefault(prefix, {}).setdefault(tier, page)

    def free(self, tier: Tier, pages: Iterable[int]) -> None:
        pages = array("q", pages)
        self.pools[tier].free(pages)
        for page in pages:
            self.bytes_of.pop(page, None)

    def finish(self) -> None:
        """End everything that runs and give everything back."""
        while self.transfers:
            self.end()
        while self.locks:
            self.unlock()
        gone = self.tree.reset()
        self.pools[Tier.DEVICE].free(gone.device_pages)
        self.pools[Tier.HOST].free(gone.host_pages)


def spelled(node: Node) -> str:
    return b"".join(one.ids for one in node.path())[12::16].decode()


def prefixes_of(node: Node) -> list[Prefix]:
    letters = spelled(node)
    return [(node.seed, letters[:count]) for count in range(1, len(letters) + 1)]
