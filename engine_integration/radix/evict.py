"""Making room in a tier: leaf after leaf from its end, in the order of the tier's policy.

Only leaves go, so what stays in a tier is always a set of prefixes. Of the last one only as many pages go as
are still wanted: a long prompt does not lose the device for the sake of one page. A node that is locked, and
so every node that a transfer names, stays.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from hicache_storage.engine_integration.radix.books import Books
from hicache_storage.engine_integration.radix.node import Node, Pages, Tier

_LONGEST_JOINED = 4096
"""A part of more pages is left alone: joining copies it."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """Pages that left the tree and are the caller's to free.

    Attributes:
        device_pages, host_pages: ids, by tier.
        write_back: nodes, parents before children, that stand in the way: they have no host copy, and the
            caller asked to lose nothing. After their backup the same call frees them.
        lost_pages: pages whose only copy in the tree is gone.
    """

    device_pages: Pages = field(default_factory=lambda: array("q"))
    host_pages: Pages = field(default_factory=lambda: array("q"))
    write_back: tuple[Node, ...] = ()
    lost_pages: int = 0


def evict_device(books: Books, num_pages: int, *, lose_unbacked: bool) -> Eviction:
    """Take leaves off the device until *num_pages* pages are free or none is left to take.

    A node with a host copy keeps it. One without is lost, together with the host copies below it, or,
    unless *lose_unbacked*, left where it is and named in ``write_back``.
    """
    if not lose_unbacked:
        return _evict_backed(books, num_pages)
    leaves = books.leaves[Tier.DEVICE]
    device, host = array("q"), array("q")
    lost, passed_over = 0, []
    while len(device) < num_pages and (node := leaves.pop(leaves.is_leaf)):
        if node.host.pages is not None:
            device += _demote(books, node, num_pages - len(device))
        elif node.host.locks:
            # A transfer reads host pages below; the node has to stay above them.
            passed_over.append(node)
        else:
            _trim(books, node, num_pages - len(device))
            lost += node.num_pages
            for lower in reversed(_below(node)):
                lost += lower.num_pages
                host += books.detach(lower, Tier.HOST)
            device += books.detach(node, Tier.DEVICE)
    for node in passed_over:
        leaves.offer(node)
    return Eviction(device, host, lost_pages=lost)


def evict_host(books: Books, num_pages: int, *, copies: bool) -> Eviction:
    """Take leaves off the host until *num_pages* pages are free or none is left to take.

    Pages whose only copy is on the host go first; with *copies*, then those of nodes that are on the device.
    """
    leaves = books.leaves[Tier.HOST]
    host: Pages = array("q")
    lost = 0
    while len(host) < num_pages and (node := leaves.pop(leaves.is_leaf)):
        is_copy = node.device.pages is not None
        if is_copy and not copies:
            leaves.offer(node)
            break
        _trim(books, node, num_pages - len(host))
        lost += 0 if is_copy else node.num_pages
        host += books.detach(node, Tier.HOST)
    return Eviction(host_pages=host, lost_pages=lost)


def _evict_backed(books: Books, num_pages: int) -> Eviction:
    """Free what has a host copy; plan the rest as if what stands in the way were gone already."""
    leaves = books.leaves[Tier.DEVICE]
    device: Pages = array("q")
    planned: list[Node] = []
    planned_children: dict[Node, int] = {}
    reached = 0

    def would_be_leaf(node: Node) -> bool:
        stay = node.device
        return stay.pages is not None and not stay.locks and stay.children == planned_children.get(node, 0)

    while reached < num_pages and (node := leaves.pop(would_be_leaf)):
        if node.host.pages is not None and node not in planned_children:
            above = node.parent
            pages = _demote(books, node, num_pages - reached)
            device += pages
            reached += len(pages)
        else:
            _trim(books, node, num_pages - reached)
            planned.append(node)
            reached += node.num_pages
            above = node.parent
            if above is not None:
                planned_children[above] = planned_children.get(above, 0) + 1
        if above is not None and not above.device.ticket and would_be_leaf(above):
            leaves.enter(above)
    for node in planned:
        leaves.offer(node)
    return Eviction(device, write_back=tuple(node for node in reversed(planned) if node.host.pages is None))


def _trim(books: Books, node: Node, num_pages: int) -> None:
    """Make *node* no longer than *num_pages*: what is above them becomes a node of its own and stays."""
    if num_pages < node.num_pages:
        books.split(node, node.num_pages - num_pages)


def _demote(books: Books, node: Node, num_pages: int) -> Pages:
    """Take at most *num_pages* of the last pages of a backed node off the device.

    What is taken joins the part behind it that was taken before, unless that was used otherwise since, so
    that a prompt that goes piece by piece does not end as a chain of small nodes.
    """
    _trim(books, node, num_pages)
    pages = books.detach(node, Tier.DEVICE)
    if len(node.children) == 1 and not (node.host.locks or node.device.locks):
        (child,) = node.children.values()
        if child.num_pages <= _LONGEST_JOINED and _use(child) == _use(node):
            books.join(node, child)
    return pages


def _use(node: Node) -> tuple[int, int, int]:
    return node.last_used, node.uses, node.priority


def _below(node: Node) -> list[Node]:
    """Return everything below *node*, parents before children."""
    found = list(node.children.values())
    for lower in found:
        found += lower.children.values()
    return found
