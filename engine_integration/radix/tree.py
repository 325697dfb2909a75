"""The radix tree: which prefixes are cached, where, and which pages they occupy.

The tree owns the pages of its nodes in two tiers, device and host, and knows which of them L3 holds. It
works on logical page ids and moves nothing. One thread uses it. Ranks that make the same calls with the
same counters have the same tree, node ids and victims included: nothing here depends on time or memory.

What always holds, and what `invariants.check` checks:

    a node on the device has its parent on the device; a node that is not on the device is on the host;
    stored pages are a prefix; a node that a transfer names is locked; equal tokens are one node.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hicache_storage.engine_integration.consensus import rank_consensus
from hicache_storage.engine_integration.options import EvictionPolicy
from hicache_storage.engine_integration.radix.books import Books
from hicache_storage.engine_integration.radix.evict import Eviction, evict_device, evict_host
from hicache_storage.engine_integration.radix.key import Key, shared_pages
from hicache_storage.engine_integration.radix.node import Node, Pages, Tier, page_array
from hicache_storage.engine_integration.radix.results import Insertion, Match
from hicache_storage.engine_integration.radix.transfers import Direction, Transfer, Transfers
from hicache_storage.errors import InvariantError

_KEY = ("key.seed", "key.ids")
_FOUND = ("result.num_device", "result.num_host", "result.num_stored", "result.last_node.id")
_TAKEN = ("result.node.id", "result.num_new", "result.unused", "result.refused")
_GONE = ("result.device_pages", "result.host_pages", "result.write_back[*].id")
"""What ranks must agree on: pages are logical and nodes are counted, so both have the same numbers on every rank."""


class RadixTree:
    """Prefixes of whole pages and the pages of two tiers that hold their KV.

    Attributes:
        transfers: begins and ends what moves pages of the tree.
        books: the nodes and their counts; for reading.
    """

    def __init__(
        self, page_tokens: int, *, eviction: EvictionPolicy = "lru", host_eviction: EvictionPolicy = "lru"
    ) -> None:
        if page_tokens < 1:
            raise InvariantError(f"page_tokens = {page_tokens}: a page has at least one token")
        self.page_tokens = page_tokens
        self.books = Books(4 * page_tokens, eviction, host_eviction)
        self.transfers = Transfers(self.books)

    @property
    def root(self) -> Node:
        return self.books.root

    def num_held(self, tier: Tier) -> int:
        """Return how many pages of *tier* the nodes hold."""
        return self.books.held[tier]

    def num_evictable(self, tier: Tier, *, copies: bool = False) -> int:
        """Return how many pages of *tier* `evict` could free at most.

        Args:
            copies: for the host, count copies of device pages too.
        """
        unlocked = self.books.held[tier] - self.books.locked[tier]
        return unlocked - self.books.copies if tier is Tier.HOST and not copies else unlocked

    @rank_consensus(same_params=_KEY, same_results=_FOUND)
    def match(self, key: Key) -> Match:
        """Return the longest known prefix of *key*. Changes nothing: no split, no use counted.

        A node that matches in part gives its leading pages but is none of the nodes of the answer; to lock
        what was found, call `match_and_split`.

        Cost: one dictionary lookup and one memory comparison per node of the path.
        """
        path, partial, shared = self._walk(key)
        return self._matched(path, partial, shared)

    @rank_consensus(same_params=(*_KEY, "now", "is_use"), same_results=_FOUND)
    def match_and_split(self, key: Key, now: int, *, is_use: bool = True) -> Match:
        """Return the longest known prefix of *key*, which ends with a whole node, and count a use of it.

        A node that matches in part is split, and its matching part is used like the rest of the path.

        Args:
            now: the caller's counter of uses; never less than at an earlier call.
            is_use: False for a look that another call for the same request follows: it makes the prefix
                recent, but does not count.

        Raises:
            InvariantError: *now* is less than before.
        """
        path = self._walk_and_split(key, now)
        for node in path:
            node.uses += is_use
        return self._matched(path, None, 0)

    @rank_consensus(same_params=(*_KEY, "pages", "now", "first_page", "priority"), same_results=_TAKEN)
    def insert(
        self,
        key: Key,
        pages: Sequence[int],
        now: int,
        *,
        first_page: int = 0,
        priority: int = 0,
        rotation: int | None = None,
    ) -> Insertion:
        """Give the tree the device pages of a computed prefix.

            caller's pages:  [ the tree's already | computed twice | computed       )
                             first_page                                 key.num_pages
            afterwards:        the tree's           Insertion.unused  the tree's
                                                    the caller frees

        *pages* are those of ``[first_page, key.num_pages)``; whatever a match has returned may be left out or
        given back. An ``array("q")`` is kept and must not be changed afterwards. Pages that the tree has elsewhere are not taken, so that each page has one owner. A part
        of the path that was on the host alone is on the device again afterwards.

        Args:
            rotation: owner of the sequence's first page under page sharding. A path has one: where another
                one is recorded, nothing is taken and ``refused`` is set.

        Raises:
            InvariantError: the number of pages is not that of the key, *now* is less than before, or pages
                in front of *first_page* are not on the device.
        """
        ids = self._checked(key, pages, first_page)
        top = self.root.children.get(key.top_label) if key.ids else None
        if top is not None and top.rotation != rotation:
            return self._refused(key, ids, first_page)
        path = self._walk_and_split(key, now)
        last = path[-1] if path else self.root
        start = last.first_page + last.num_pages
        if start < first_page or any(node.first_page < first_page and node.device.pages is None for node in path):
            raise InvariantError(f"pages in front of {first_page} are not on the device: {path[-1:]} is the end")
        for node in path:
            node.priority = max(node.priority, priority)
        unused = self._fill(path, Tier.DEVICE, ids, first_page)
        if start < key.num_pages:
            last = self._add(last, key, rotation)
            last.uses, last.priority = 1, priority
            self.books.attach(last, Tier.DEVICE, _behind(ids, start - first_page))
        return Insertion(last, unused, len(ids) - len(unused))

    @rank_consensus(same_params=(*_KEY, "pages", "now", "first_page", "stored"), same_results=_TAKEN)
    def insert_host(
        self,
        key: Key,
        pages: Sequence[int],
        now: int,
        *,
        first_page: int = 0,
        stored: bool = True,
        rotation: int | None = None,
    ) -> Insertion:
        """Give the tree host pages that came from L3, those of ``[first_page, key.num_pages)``.

        Pages that the tree has on the host, or is copying there, are not taken. Nor is any page when the
        prefix in front of *first_page* has left the tree, or is of another rotation.

        Args:
            stored: L3 is known to hold them.

        Raises:
            InvariantError: the number of pages is not that of the key, or *now* is less than before.
        """
        ids = self._checked(key, pages, first_page)
        top = self.root.children.get(key.top_label) if key.ids else None
        if top is not None and top.rotation != rotation:
            return Insertion(self.root, ids, 0, refused=True)
        path = self._walk_and_split(key, now)
        last = path[-1] if path else self.root
        if last.first_page + last.num_pages < first_page:
            return Insertion(last, ids, 0)
        for index, node in enumerate(path):
            if node.first_page < first_page < node.first_page + node.num_pages:
                path.insert(index, self.books.split(node, first_page - node.first_page))
                break
        unused = self._fill(path, Tier.HOST, ids, first_page)
        start = last.first_page + last.num_pages
        if start < key.num_pages:
            last = self._add(last, key, rotation)
            path.append(last)
            self.books.attach(last, Tier.HOST, _behind(ids, start - first_page))
        for node in path if stored else ():
            if node.first_page >= first_page and node.parent is not None and node.parent.is_stored:
                node.stored = node.num_pages
        return Insertion(last, unused, len(ids) - len(unused))

    @rank_consensus(same_params=("node.id", "tier"))
    def lock(self, node: Node, tier: Tier) -> None:
        """Keep the path to *node* from being evicted from *tier*, until `unlock` is called as often.

        A lock in HOST keeps the path in the tree, also where a part of it is on the device alone: what a
        prefetch needs that will insert behind it.

        Raises:
            InvariantError: *node* has left the tree, or is not on the device and to be locked there.
        """
        self.books.lock(node, tier)

    @rank_consensus(same_params=("node.id", "tier"))
    def unlock(self, node: Node, tier: Tier) -> None:
        """Undo one `lock` of the same node.

        Raises:
            InvariantError: the node itself is not locked in *tier*; nothing is changed.
        """
        self.books.unlock(node, tier)

    @rank_consensus(same_params=("node.id", "num_pages"), same_results="result.id")
    def split(self, node: Node, num_pages: int) -> Node:
        """Cut *node* behind *num_pages* pages, for a transfer of a part; return the upper part."""
        return self.books.split(node, num_pages)

    @rank_consensus(same_params=True, same_results=_GONE)
    def evict(self, tier: Tier, num_pages: int, *, lose_unbacked: bool = True, copies: bool = False) -> Eviction:
        """Free at least *num_pages* pages of *tier* if so many can be freed, else as many as can.

        Being short is an answer, not an error: compare the number of pages with what was asked for.

        Args:
            lose_unbacked: for the device, drop nodes that have no host copy instead of naming them in
                ``write_back``.
            copies: for the host, take copies of device pages too, once nothing else is left.

        Cost: O(log nodes) per node that goes.
        """
        if tier is Tier.DEVICE:
            return evict_device(self.books, num_pages, lose_unbacked=lose_unbacked)
        return evict_host(self.books, num_pages, copies=copies)

    def unbacked(self, node: Node) -> list[Node]:
        """Return the nodes of the path to *node* that have no host copy and none under way, top first."""
        return [one for one in node.path() if one.host.pages is None and not one.takes_part(Direction.BACKUP)]

    def unloaded(self, node: Node) -> list[Node]:
        """Return the nodes of the path to *node* that are on the host alone, top first: what `begin_load` takes."""
        return [one for one in node.path() if one.device.pages is None]

    def unstored(self, node: Node) -> list[Node]:
        """Return the nodes of the path to *node* that L3 is not known to hold and not taking, top first.

        They end with the first node that is not on the host: what may be stored without leaving a gap.
        """
        nodes = []
        for one in node.path():
            if one.is_stored or one.takes_part(Direction.STORE):
                continue
            if one.host.pages is None:
                break
            nodes.append(one)
        return nodes

    def page_hashes(self, node: Node) -> list[str]:
        """Return the chained hashes of all pages from the start of the sequence to the end of *node*."""
        return [page_hash for one in node.path() for page_hash in one.page_hashes()]

    @rank_consensus(same_params="node.id")
    def forget_stored(self, node: Node | None = None) -> None:
        """Take back what is known of L3 for *node* and everything below it, or for the whole tree."""
        nodes = [node or self.root]
        for one in nodes:
            one.stored = 0
            nodes += one.children.values()

    @rank_consensus(same_results=_GONE)
    def reset(self) -> Eviction:
        """Remove every node and return all pages.

        Raises:
            InvariantError: something is locked; nothing is changed.
        """
        if any(stay.locks for stay in self.root.tiers):
            raise InvariantError(f"cannot reset: {self.books.locked} pages are locked by requests or transfers")
        device, host, lost = array("q"), array("q"), 0
        for node in reversed(list(self.books.nodes())):
            lost += node.num_pages
            if node.device.pages is not None:
                device += self.books.detach(node, Tier.DEVICE)
            if node.host.pages is not None:
                host += self.books.detach(node, Tier.HOST)
        return Eviction(device, host, lost_pages=lost)

    def _walk(self, key: Key) -> tuple[list[Node], Node | None, int]:
        """Return the nodes that match as a whole, then one that matches in part and how many of its pages do."""
        ids, step = key.ids, key.page_nbytes
        if step != self.books.page_nbytes:
            raise InvariantError(f"a key of {step // 4}-token pages in a tree of {self.page_tokens}-token pages")
        path: list[Node] = []
        children, label, offset, stop = self.root.children, key.top_label, 0, len(ids)
        while offset < stop:
            node = children.get(label)
            if node is None:
                break
            if not ids.startswith(node.ids, offset):
                return path, node, shared_pages(ids, offset, node.ids, step)
            path.append(node)
            offset += len(node.ids)
            children, label = node.children, ids[offset : offset + step]
        return path, None, 0

    def _walk_and_split(self, key: Key, now: int) -> list[Node]:
        """Return the matching nodes, the last of them split if need be, all of them used now."""
        self.books.advance(now)
        path, partial, shared = self._walk(key)
        if partial is not None:
            path.append(self.books.split(partial, shared))
        for node in path:
            node.last_used = now
        return path

    def _matched(self, path: list[Node], partial: Node | None, shared: int) -> Match:
        device: list[Pages] = []
        host: list[Pages] = []
        device_node = last_node = self.root
        num_device = num_host = num_stored = 0
        loads: dict[Transfer, None] = {}
        for node in path:
            last_node = node
            num_stored += node.stored
            if node.device.pages is not None:
                device_node = node
                num_device += node.num_pages
                device.append(node.device.pages)
                if node.transfers:
                    loads |= {one: None for one in node.transfers if one.direction is Direction.LOAD}
            elif node.host.pages is not None:
                num_host += node.num_pages
                host.append(node.host.pages)
        if partial is not None:
            num_stored += min(shared, partial.stored)
            if partial.device.pages is not None:
                num_device += shared
                device.append(partial.device.pages[:shared])
                loads |= {one: None for one in partial.transfers if one.direction is Direction.LOAD}
            elif partial.host.pages is not None:
                num_host += shared
                host.append(partial.host.pages[:shared])
        return Match(num_device, num_host, num_stored, device_node, last_node, tuple(loads), device, host)

    def _add(self, last: Node, key: Key, rotation: int | None) -> Node:
        """Return a new node below *last* for the rest of *key*."""
        offset = (last.first_page + last.num_pages) * key.page_nbytes
        label = key.top_label if last.is_root else key.ids[offset : offset + key.page_nbytes]
        node = self.books.add(last, label, key.ids[offset:])
        node.seed, node.rotation = key.seed, rotation
        return node

    def _fill(self, path: Sequence[Node], tier: Tier, ids: Pages, first_page: int) -> Pages:
        """Bring the nodes of *path* behind *first_page* into *tier*; return the ids that are not needed."""
        unused: Pages = array("q")
        for node in path:
            start = node.first_page - first_page
            if start + node.num_pages <= 0:
                continue
            brought = ids[max(start, 0) : start + node.num_pages]
            mine = node.tiers[tier].pages
            if mine is not None:
                mine = mine[-start:] if start < 0 else mine
                if brought != mine:
                    unused.extend(theirs for theirs, own in zip(brought, mine, strict=True) if theirs != own)
            elif tier is Tier.HOST and node.takes_part(Direction.BACKUP):
                unused += brought
            else:
                self.books.attach(node, tier, brought)
        return unused

    def _refused(self, key: Key, ids: Pages, first_page: int) -> Insertion:
        """Return all of the caller's pages but those that a match has lent it."""
        lent = self.match(key).device_pages()[first_page:]
        unused = array("q", [page for at, page in enumerate(ids) if at >= len(lent) or lent[at] != page])
        return Insertion(self.root, unused, 0, refused=True)

    def _checked(self, key: Key, pages: Sequence[int], first_page: int) -> Pages:
        if not 0 <= first_page <= key.num_pages or len(pages) != key.num_pages - first_page:
            raise InvariantError(f"{len(pages)} pages for pages [{first_page}, {key.num_pages}) of a key")
        return page_array(pages)


def _behind(pages: Pages, start: int) -> Pages:
    """Return the pages from *start* on, without a copy where that is all of them."""
    return pages[start:] if start else pages
