"""Every change of a node, with the counts and the leaves kept right. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import Iterator

from hicache_storage.engine_integration.options import EvictionPolicy
from hicache_storage.engine_integration.radix.leaves import Leaves, policy_of
from hicache_storage.engine_integration.radix.node import Node, Pages, Tier
from hicache_storage.errors import InvariantError


class Books:
    """The nodes of a tree and what is counted about them.

    Attributes:
        root: holds no page and is never removed.
        leaves: by tier, what may be evicted next.
        held: by tier, pages that nodes hold.
        locked: by tier, the pages among them whose node is locked.
        copies: host pages, not locked, of nodes that are on the device too.
        num_nodes: without the root.
        now: the highest counter that a caller has handed in.
    """

    def __init__(self, page_nbytes: int, policy: EvictionPolicy, host_policy: EvictionPolicy) -> None:
        self.page_nbytes = page_nbytes
        self.root = Node(0, None, b"", b"", 0)
        self.leaves = (Leaves(Tier.DEVICE, policy_of(policy)), Leaves(Tier.HOST, policy_of(host_policy)))
        self.held = [0, 0]
        self.locked = [0, 0]
        self.copies = 0
        self.num_nodes = 0
        self.now = 0
        self._last_id = 0

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the root, parents before children."""
        todo = list(self.root.children.values())
        while todo:
            node = todo.pop()
            yield node
            todo += node.children.values()

    def advance(self, now: int) -> None:
        """Set the counter of uses.

        Raises:
            InvariantError: it runs backwards; entries of leaves would not be corrected any more.
        """
        if now < self.now:
            raise InvariantError(f"the counter of uses went back from {self.now} to {now}")
        self.now = now

    def add(self, parent: Node, label: bytes, ids: bytes) -> Node:
        """Return a new child of *parent* that is in no tier yet; the caller attaches pages at once."""
        node = self._new(parent, label, ids, len(ids) // self.page_nbytes)
        node.seed, node.rotation = parent.seed, parent.rotation
        node.last_used = self.now
        parent.children[label] = node
        return node

    def attach(self, node: Node, tier: Tier, pages: Pages) -> None:
        """Bring *node* into *tier*; *pages* are the tree's from now on."""
        stay, parent = node.tiers[tier], _parent(node)
        if stay.pages is not None or len(pages) != node.num_pages:
            raise InvariantError(f"{node} cannot take {len(pages)} {tier.name} pages")
        self._count(node, -1)
        stay.pages = pages
        self._count(node, 1)
        parent.tiers[tier].children += 1
        self.leaves[tier].offer(node)

    def detach(self, node: Node, tier: Tier) -> Pages:
        """Take *node* out of *tier* and return its pages, which are the caller's now.

        A node that is left in no tier is removed.

        Raises:
            InvariantError: it is not in the tier, is locked, or has children there.
        """
        stay, parent = node.tiers[tier], _parent(node)
        pages = stay.pages
        if pages is None or stay.locks or stay.children:
            raise InvariantError(f"{node} cannot leave {tier.name}: {stay.locks} locks, {stay.children} children there")
        self._count(node, -1)
        stay.pages = None
        self._count(node, 1)
        self.leaves[tier].forget(node)
        parent.tiers[tier].children -= 1
        if node.device.pages is None and node.host.pages is None:
            self._remove(node, parent)
        elif tier is Tier.DEVICE:
            self.leaves[Tier.HOST].renew(node)
        self.leaves[tier].offer(parent)
        return pages

    def split(self, node: Node, num_pages: int) -> Node:
        """Cut *node* behind its first *num_pages* pages and return the new node that holds them.

        *node* stays the lower part, so whoever holds it, or a lock on it, still means the same prefix: the
        upper part takes over the count of locks, and running transfers name it before *node*.
        """
        if not 0 < num_pages < node.num_pages:
            raise InvariantError(f"{node} cannot be split behind {num_pages} pages")
        cut = num_pages * self.page_nbytes
        parent = _parent(node)
        upper = self._new(parent, node.label, node.buffer, num_pages)
        upper.offset, upper.nbytes = node.offset, cut
        upper.seed, upper.rotation, upper.priority = node.seed, node.rotation, node.priority
        upper.uses, upper.last_used = node.uses, node.last_used
        upper.stored = min(node.stored, num_pages)
        node.stored -= upper.stored
        if node.hashes is not None:
            upper.hashes, node.hashes = node.hashes[:num_pages], node.hashes[num_pages:]
        for mine, theirs in zip(upper.tiers, node.tiers, strict=True):
            mine.locks = theirs.locks
            if theirs.pages is not None:
                mine.pages, theirs.pages = theirs.pages[:num_pages], theirs.pages[num_pages:]
                mine.children = 1
        upper.transfers = node.transfers
        for transfer in node.transfers:
            transfer.nodes.insert(transfer.nodes.index(node), upper)
        parent.children[node.label] = upper
        node.parent = upper
        node.offset += cut
        node.nbytes -= cut
        node.first_page += num_pages
        node.num_pages -= num_pages
        node.label = node.buffer[node.offset : node.offset + self.page_nbytes]
        upper.children[node.label] = node
        return upper

    def join(self, upper: Node, lower: Node) -> None:
        """Undo a split: *lower*, the only child of *upper*, takes its pages in front of its own; *upper* is removed.

        Both are on the host alone, unlocked, and were used alike.

        Cost: copies both nodes' pages.
        """
        above, below, parent = upper.host.pages, lower.host.pages, _parent(upper)
        if above is None or below is None or upper.device.pages is not None or len(upper.children) != 1:
            raise InvariantError(f"{upper} and {lower} are not one piece of the host tier")
        if upper.transfers or any(stay.locks for stay in upper.tiers):
            raise InvariantError(f"{upper} cannot be joined with {lower}: it is in use")
        lower.host.pages = above + below
        lower.buffer, lower.offset = upper.ids + lower.ids, 0
        lower.nbytes = len(lower.buffer)
        lower.num_pages += upper.num_pages
        lower.first_page = upper.first_page
        lower.stored += upper.stored
        lower.hashes = None if upper.hashes is None or lower.hashes is None else upper.hashes + lower.hashes
        lower.parent, lower.label = parent, upper.label
        parent.children[upper.label] = lower
        for leaves in self.leaves:
            leaves.forget(upper)
        upper.parent = None
        self.num_nodes -= 1

    def lock(self, node: Node, tier: Tier) -> None:
        """Keep the whole path to *node* in *tier* until `unlock` is called for *node*."""
        if node.parent is None and node is not self.root:
            raise InvariantError(f"{node} was removed from the tree and cannot be locked")
        if tier is Tier.DEVICE and node.device.pages is None and node is not self.root:
            raise InvariantError(f"{node} is not on the device and cannot be locked there")
        node.tiers[tier].owned += 1
        above: Node | None = node
        while above is not None:
            stay = above.tiers[tier]
            if not stay.locks:
                self._count(above, -1)
            stay.locks += 1
            if stay.locks == 1:
                self._count(above, 1)
            above = above.parent

    def unlock(self, node: Node, tier: Tier) -> None:
        """Undo one `lock` of *node*.

        Raises:
            InvariantError: *node* itself is not locked; nothing is changed.
        """
        if not node.tiers[tier].owned:
            raise InvariantError(f"{node} is not locked in {tier.name}")
        node.tiers[tier].owned -= 1
        above: Node | None = node
        while above is not None:
            stay = above.tiers[tier]
            if stay.locks == 1:
                self._count(above, -1)
            stay.locks -= 1
            if not stay.locks:
                self._count(above, 1)
                self.leaves[tier].offer(above)
            above = above.parent

    def _new(self, parent: Node, label: bytes, ids: bytes, num_pages: int) -> Node:
        self._last_id += 1
        self.num_nodes += 1
        return Node(self._last_id, parent, label, ids, num_pages)

    def _remove(self, node: Node, parent: Node) -> None:
        if node.children or node.transfers or node.device.locks or node.host.locks:
            raise InvariantError(f"{node} cannot be removed: it is in use")
        del parent.children[node.label]
        node.parent = None
        self.num_nodes -= 1

    def _count(self, node: Node, sign: int) -> None:
        """Add or take away what *node* is worth in every count."""
        pages = sign * node.num_pages
        device, host = node.device, node.host
        if device.pages is not None:
            self.held[Tier.DEVICE] += pages
            self.locked[Tier.DEVICE] += pages * bool(device.locks)
        if host.pages is not None:
            self.held[Tier.HOST] += pages
            self.locked[Tier.HOST] += pages * bool(host.locks)
            self.copies += pages * (device.pages is not None and not host.locks)


def _parent(node: Node) -> Node:
    if node.parent is None:
        raise InvariantError(f"{node} is the root or was removed from the tree")
    return node.parent
