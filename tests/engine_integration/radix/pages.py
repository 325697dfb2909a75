"""Prompts spelled with letters, one page each, and pools that notice every double use."""

from __future__ import annotations

from collections.abc import Iterable

from hicache_storage.engine_integration.radix import Eviction, Insertion, Key, Node, RadixTree, Tier, check
from hicache_storage.layout import page_hashes

PAGE_TOKENS = 4


def tokens(letters: str) -> list[int]:
    """Return one page of tokens a letter; pages of different letters differ in their last token alone."""
    return [token for letter in letters for token in (7, 7, 7, ord(letter))]


def key(letters: str, seed: str | None = None) -> Key:
    return Key.of(tokens(letters), PAGE_TOKENS, seed=seed)


def hashes(letters: str, seed: str | None = None) -> list[str]:
    return page_hashes(tokens(letters), PAGE_TOKENS, prior=seed)


class Pool:
    """Hands out page ids and takes them back; each page has one owner at a time."""

    def __init__(self, capacity: int = 1000, first: int = 0) -> None:
        self.free_pages = list(range(first, first + capacity))
        self.held: set[int] = set()

    def take(self, count: int) -> list[int]:
        assert count <= len(self.free_pages), f"{count} wanted, {len(self.free_pages)} free"
        pages, self.free_pages = self.free_pages[:count], self.free_pages[count:]
        self.held |= set(pages)
        return pages

    def free(self, pages: Iterable[int]) -> None:
        given_back = list(pages)
        assert len(set(given_back)) == len(given_back), f"{given_back} freed twice in one call"
        assert self.held.issuperset(given_back), f"{given_back} freed and not held"
        self.held -= set(given_back)
        self.free_pages += given_back


class Bench:
    """A tree with its two pools and a counter; every step checks all books."""

    def __init__(self, tree: RadixTree | None = None, device: int = 1000, host: int = 1000) -> None:
        self.tree = tree or RadixTree(PAGE_TOKENS)
        self.device = Pool(device)
        self.host = Pool(host, first=100_000)
        self.now = 0

    def check(self) -> None:
        check(self.tree, device_pages=self.device.held, host_pages=self.host.held)

    def tick(self) -> int:
        self.now += 1
        return self.now

    def insert(self, letters: str, *, seed: str | None = None, priority: int = 0) -> Insertion:
        """Insert as a request does that matched what is on the device and computed the rest."""
        known = self.tree.match(key(letters, seed)).device_pages()
        new = self.device.take(len(letters) - len(known))
        done = self.tree.insert(key(letters, seed), [*known, *new], self.tick(), priority=priority)
        self.device.free(done.unused)
        self.check()
        return done

    def use(self, letters: str) -> Node:
        return self.tree.match_and_split(key(letters), self.tick()).last_node

    def back_up(self, node: Node) -> None:
        nodes = self.tree.unbacked(node)
        if nodes:
            running = self.tree.transfers.begin_backup(nodes, self.host.take(sum(one.num_pages for one in nodes)))
            self.tree.transfers.complete(running)
        self.check()

    def evict(self, tier: Tier, num_pages: int, *, lose_unbacked: bool = True, copies: bool = False) -> Eviction:
        gone = self.tree.evict(tier, num_pages, lose_unbacked=lose_unbacked, copies=copies)
        self.device.free(gone.device_pages)
        self.host.free(gone.host_pages)
        self.check()
        return gone

    def spell(self) -> set[str]:
        """Return every cached prefix that ends with a node, with ``*`` behind pages on the host alone."""
        found = set()
        for node in self.tree.books.nodes():
            path = node.path()
            letters = b"".join(one.ids for one in path)[12::16].decode()
            found.add(letters + ("" if node.device.pages is not None else "*"))
        return found
