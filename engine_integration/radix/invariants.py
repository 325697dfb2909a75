"""The tree's books, counted again from nothing: run when the engine is idle, and after every step of the tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from hicache_storage.engine_integration.radix.node import Node, Tier
from hicache_storage.engine_integration.radix.transfers import Direction
from hicache_storage.engine_integration.radix.tree import RadixTree
from hicache_storage.errors import InvariantError
from hicache_storage.layout import packed_page_hashes


def check(
    tree: RadixTree,
    *,
    device_pages: Collection[int] | None = None,
    host_pages: Collection[int] | None = None,
    hashes: bool = True,
) -> None:
    """Raise unless everything that the tree says about itself is so.

    Args:
        device_pages, host_pages: what an allocator has given out, less what requests hold that the tree has
            not; must be exactly the pages of nodes and the targets of running backups.
        hashes: also compute every page hash again that is known, which costs more than all the rest.

    Raises:
        InvariantError: the first thing that is not as it should be.

    Cost: about 50 us a node, and with *hashes* about 2 us a page whose hash is known.
    """
    nodes = list(tree.books.nodes())
    for node in (tree.root, *nodes):
        _check_children(node)
        _check_locks(node)
    for node in nodes:
        _check_edge(tree, node)
        _check_tiers(node)
        _check_order(tree, node)
        if hashes and node.hashes is not None:
            _check_hashes(tree, node)
    _check_transfers(tree, nodes)
    _check_counts(tree, nodes)
    for tier, given_out in ((Tier.DEVICE, device_pages), (Tier.HOST, host_pages)):
        _check_pages(tree, tier, given_out)
        _check_leaves(tree, nodes, tier)


def held_pages(tree: RadixTree, tier: Tier) -> Iterator[int]:
    """Yield every page of *tier* that the tree or a running backup of it holds."""
    for node in tree.books.nodes():
        yield from node.tiers[tier].pages or ()
    for transfer in tree.transfers.running:
        if tier is Tier.HOST and transfer.direction is Direction.BACKUP:
            yield from transfer.target


def _expect(holds: bool, message: str, *values: object) -> None:
    """Raise unless *holds*; the message is only made then."""
    if not holds:
        raise InvariantError(message.format(*values))


def _check_children(node: Node) -> None:
    for label, child in node.children.items():
        _expect(child.parent is node, "{} does not know its parent {}", child, node)
        _expect(child.label == label, "{} is listed under another label than its own", child)
        _expect(child.first_page == node.first_page + node.num_pages, "{} does not follow {}", child, node)
        _expect(node.is_root or child.seed == node.seed, "{} is in another scope than {}", child, node)
        _expect(node.is_root or child.rotation == node.rotation, "{} has another rotation than {}", child, node)
    for tier in Tier:
        present = sum(child.tiers[tier].pages is not None for child in node.children.values())
        said = node.tiers[tier].children
        _expect(said == present, "{} counts {} children in {}, there are {}", node, said, tier.name, present)


def _check_locks(node: Node) -> None:
    for tier in Tier:
        stay = node.tiers[tier]
        below = sum(child.tiers[tier].locks for child in node.children.values())
        _expect(stay.owned >= 0, "{} has {} locks of its own in {}", node, stay.owned, tier.name)
        _expect(
            stay.locks == stay.owned + below,
            "{} counts {} locks in {}: {} are its own, {} lie below",
            node,
            stay.locks,
            tier.name,
            stay.owned,
            below,
        )


def _check_edge(tree: RadixTree, node: Node) -> None:
    step = 4 * tree.page_tokens
    _expect(node.num_pages > 0, "{} has no page", node)
    _expect(len(node.ids) == node.num_pages * step, "{} has {} bytes of tokens", node, len(node.ids))
    top = node.seed.encode() if node.seed is not None and node.first_page == 0 else b""
    _expect(node.label == top + node.ids[:step], "{} has a label that is not its first page", node)


def _check_tiers(node: Node) -> None:
    for tier in Tier:
        pages = node.tiers[tier].pages
        _expect(pages is None or len(pages) == node.num_pages, "{} has another number of {} pages", node, tier.name)
    parent = node.parent
    on_device = node.device.pages is not None
    _expect(on_device or node.host.pages is not None, "{} is in no tier", node)
    above = parent is not None and (parent.is_root or parent.device.pages is not None)
    _expect(not on_device or above, "{} is on the device and {} is not", node, parent)
    _expect(0 <= node.stored <= node.num_pages, "{} has {} stored pages", node, node.stored)
    _expect(not node.stored or (parent is not None and parent.is_stored), "{} is stored and {} is not", node, parent)


def _check_order(tree: RadixTree, node: Node) -> None:
    parent = node.parent
    _expect(node.last_used <= tree.books.now, "{} was used after now", node)
    if parent is not None and not parent.is_root:
        _expect(node.last_used <= parent.last_used, "{} was used after {}", node, parent)


def _check_hashes(tree: RadixTree, node: Node) -> None:
    prior = node.seed
    if node.parent is not None and not node.parent.is_root:
        _expect(node.parent.hashes is not None, "{} has hashes and {} has none", node, node.parent)
        prior = (node.parent.hashes or [""])[-1]
    right = packed_page_hashes(node.ids, tree.page_tokens, prior=prior)
    _expect(node.hashes == right, "{} has page hashes that are not those of its tokens", node)


def _check_transfers(tree: RadixTree, nodes: list[Node]) -> None:
    alive = set(nodes)
    for transfer in tree.transfers.running:
        _expect(transfer.is_open, "a transfer {} has ended and still runs", transfer.direction.value)
        pages = sum(node.num_pages for node in transfer.nodes)
        _expect(pages == len(transfer.source), "a transfer of {} pages names {}", len(transfer.source), pages)
        for node in transfer.nodes:
            _expect(node in alive, "a transfer names {}, which is not in the tree", node)
            _expect(transfer in node.transfers, "{} does not know a transfer that names it", node)
            _expect(all(node.tiers[tier].locks for tier in transfer.locks), "{} is being moved and not locked", node)
    for node in nodes:
        for transfer in node.transfers:
            _expect(transfer in tree.transfers.running, "{} names a transfer that does not run", node)
            _expect(node in transfer.nodes, "{} names a transfer that does not name it", node)


def _check_counts(tree: RadixTree, nodes: list[Node]) -> None:
    books = tree.books
    _expect(books.num_nodes == len(nodes), "{} nodes, {} counted", len(nodes), books.num_nodes)
    for tier in Tier:
        inside = [node for node in nodes if node.tiers[tier].pages is not None]
        held = sum(node.num_pages for node in inside)
        locked = sum(node.num_pages for node in inside if node.tiers[tier].locks)
        _expect(books.held[tier] == held, "{} {} pages held, {} counted", held, tier.name, books.held[tier])
        _expect(books.locked[tier] == locked, "{} {} pages locked, {} counted", locked, tier.name, books.locked[tier])
    both = [node for node in nodes if node.host.pages is not None and node.device.pages is not None]
    copies = sum(node.num_pages for node in both if not node.host.locks)
    _expect(books.copies == copies, "{} copies, {} counted", copies, books.copies)


def _check_pages(tree: RadixTree, tier: Tier, given_out: Collection[int] | None) -> None:
    held = list(held_pages(tree, tier))
    twice = [page for page, count in Counter(held).items() if count > 1]
    _expect(not twice, "{} pages {} are held twice", tier.name, twice[:8])
    if given_out is not None:
        wrong = sorted(set(held) ^ set(given_out))
        _expect(not wrong, "{} pages {} are held and not given out, or given out and not held", tier.name, wrong[:8])


def _check_leaves(tree: RadixTree, nodes: list[Node], tier: Tier) -> None:
    leaves = tree.books.leaves[tier]
    entries = leaves.entries()
    for node in nodes:
        if leaves.is_leaf(node):
            _expect(node in entries, "{} is a leaf of {} that eviction would not find", node, tier.name)
            _expect(entries[node] <= leaves.rank(node), "{} stands too late among the leaves of {}", node, tier.name)
    alive = set(nodes)
    _expect(entries.keys() <= alive, "a removed node stands among the leaves of {}", tier.name)
