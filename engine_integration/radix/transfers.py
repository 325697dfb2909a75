"""Pages on their way between tiers, and what keeps them safe meanwhile.

A transfer states at its start what is moved: source pages, target pages and page hashes are plain data that
a thread may use without looking at the tree. The nodes it names are locked until it ends. A node that is
split meanwhile is named as two; the end finds every page under the right node.

    BACKUP  device -> host   at the end the nodes have the host pages
    LOAD    host -> device   the nodes have the device pages at once: a request may start while layers still
                             arrive, and has to wait for the layers of every load that `Match.loads` names
    STORE   host -> L3       at the end a leading part is known to be stored
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from itertools import pairwise

from hicache_storage.engine_integration.consensus import rank_consensus
from hicache_storage.engine_integration.radix.books import Books
from hicache_storage.engine_integration.radix.node import Node, Pages, Tier, page_array
from hicache_storage.errors import InvariantError


@unique
class Direction(Enum):
    """From where to where."""

    BACKUP = "device to host"
    LOAD = "host to device"
    STORE = "host to L3"


@dataclass(slots=True, eq=False)
class Transfer:
    """Pages of one path that move together, in the order of the path.

    Attributes:
        nodes: the nodes that hold the source pages, top first; a split adds to them.
        source: ids of the pages that are read.
        target: ids of the pages that are written; empty for STORE.
        hashes: of the pages, for STORE.
        first_page: position of the first page in its sequence.
        is_open: neither completed nor aborted.
    """

    direction: Direction
    nodes: list[Node]
    source: Pages
    target: Pages = field(default_factory=lambda: array("q"))
    hashes: tuple[str, ...] = ()
    first_page: int = 0
    is_open: bool = True

    @property
    def locks(self) -> tuple[Tier, ...]:
        """The tiers that its last node, and so its whole path, is locked in while it runs."""
        return (Tier.HOST,) if self.direction is Direction.STORE else (Tier.DEVICE, Tier.HOST)


_TRANSFER = ("transfer.direction", "transfer.first_page", "transfer.source", "transfer.target")


class Transfers:
    """The running transfers of a tree: each is begun once and ended once, by `complete` or `abort`."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.running: dict[Transfer, None] = {}

    @rank_consensus(same_params=("nodes[*].id", "host_pages"))
    def begin_backup(self, nodes: Sequence[Node], host_pages: Sequence[int]) -> Transfer:
        """Lock *nodes*, of one path and top first, and copy them to *host_pages*, which the transfer owns.

        Raises:
            InvariantError: a node is not on the device, is on the host, is being copied there already, or the
                number of pages is not that of the nodes. Nothing is changed.
        """
        if any(node.host.pages is not None or node.takes_part(Direction.BACKUP) for node in nodes):
            raise InvariantError(f"{list(nodes)}: a node is on the host or on its way there")
        source = _pages_of(nodes, Tier.DEVICE)
        target = _target(host_pages, source)
        return self._begin(Transfer(Direction.BACKUP, list(nodes), source, target))

    @rank_consensus(same_params=("nodes[*].id", "device_pages"))
    def begin_load(self, nodes: Sequence[Node], device_pages: Sequence[int]) -> Transfer:
        """Put *nodes*, of one path and top first, on the device, whose *device_pages* are still being filled.

        Raises:
            InvariantError: a node is not on the host, is on the device, the node above the first one is
                not on the device, a node between is left out, or the number of pages is not that of the
                nodes. Nothing is changed.
        """
        if any(node.device.pages is not None for node in nodes):
            raise InvariantError(f"{list(nodes)}: a node is on the device already")
        source = _pages_of(nodes, Tier.HOST)
        target = _target(device_pages, source)
        above = nodes[0].parent
        if above is None or not (above.is_root or above.device.pages is not None):
            raise InvariantError(f"{nodes[0]} cannot be loaded: the node above it is not on the device")
        if any(lower.parent is not upper for upper, lower in pairwise(nodes)):
            raise InvariantError(f"{list(nodes)} are not one piece of a path")
        self._attach(nodes, Tier.DEVICE, target)
        return self._begin(Transfer(Direction.LOAD, list(nodes), source, target))

    @rank_consensus(same_params="nodes[*].id", same_results="result.source")
    def begin_store(self, nodes: Sequence[Node]) -> Transfer:
        """Lock *nodes*, of one path and top first, on the host while L3 takes what it is not known to hold.

        A first node that is stored in part is split, so that the transfer covers whole nodes.

        Raises:
            InvariantError: a node is not on the host; nothing is changed.
        """
        _pages_of(nodes, Tier.HOST)
        if 0 < nodes[0].stored < nodes[0].num_pages:
            self._books.split(nodes[0], nodes[0].stored)
        hashes = tuple(page_hash for node in nodes for page_hash in node.page_hashes())
        return self._begin(Transfer(Direction.STORE, list(nodes), _pages_of(nodes, Tier.HOST), hashes=hashes))

    @rank_consensus(same_params=(*_TRANSFER, "num_stored"))
    def complete(self, transfer: Transfer, num_stored: int | None = None) -> None:
        """End *transfer* with success and unlock its nodes.

        Args:
            num_stored: for STORE, how many of its leading pages L3 holds; all if None. Pages behind one that
                is not known to be stored do not count: no reader would find them.

        Raises:
            InvariantError: it has ended before.
        """
        self._end(transfer)
        if transfer.direction is Direction.BACKUP:
            self._attach(transfer.nodes, Tier.HOST, transfer.target)
        if transfer.direction is Direction.STORE:
            _mark_stored(transfer.nodes, len(transfer.source) if num_stored is None else num_stored)
        self._unlock(transfer)

    @rank_consensus(same_params=_TRANSFER)
    def abort(self, transfer: Transfer) -> Pages:
        """End *transfer* as if it had not begun and return its target pages, which are the caller's to free.

        Raises:
            InvariantError: it has ended before; or it is a LOAD whose device pages somebody else uses by now,
                and nothing is changed.
        """
        if transfer.direction is Direction.LOAD:
            self._check_unused(transfer)
        self._end(transfer)
        self._unlock(transfer)
        if transfer.direction is Direction.LOAD:
            for node in reversed(transfer.nodes):
                self._books.detach(node, Tier.DEVICE)
        return transfer.target

    def _begin(self, transfer: Transfer) -> Transfer:
        last = transfer.nodes[-1]
        transfer.first_page = transfer.nodes[0].first_page
        for tier in transfer.locks:
            self._books.lock(last, tier)
        for node in transfer.nodes:
            node.transfers += (transfer,)
        self.running[transfer] = None
        return transfer

    def _end(self, transfer: Transfer) -> None:
        if not transfer.is_open:
            raise InvariantError(f"a transfer from {transfer.direction.value} was ended twice")
        transfer.is_open = False
        del self.running[transfer]
        for node in transfer.nodes:
            node.transfers = tuple(other for other in node.transfers if other is not transfer)

    def _unlock(self, transfer: Transfer) -> None:
        for tier in transfer.locks:
            self._books.unlock(transfer.nodes[-1], tier)

    def _attach(self, nodes: Sequence[Node], tier: Tier, pages: Pages) -> None:
        start = 0
        for node in nodes:
            self._books.attach(node, tier, pages[start : start + node.num_pages])
            start += node.num_pages

    def can_abort(self, transfer: Transfer) -> bool:
        """Return whether `abort` would raise nothing for a running *transfer*."""
        return transfer.direction is not Direction.LOAD or self._use_of(transfer) is None

    def _check_unused(self, transfer: Transfer) -> None:
        use = self._use_of(transfer)
        if use is not None:
            raise InvariantError(f"the load of {transfer.nodes} cannot be undone: its device pages are {use}")

    def _use_of(self, transfer: Transfer) -> str | None:
        """Return what somebody else does with the device pages of a load; None if nobody does anything."""
        last = transfer.nodes[-1].device
        if last.locks > 1 or last.children or any(node.device.children > 1 for node in transfer.nodes):
            return "in use"
        return "locked" if any(node.device.locks > 1 for node in transfer.nodes) else None


def _pages_of(nodes: Sequence[Node], tier: Tier) -> Pages:
    """Return the pages of *nodes* in *tier*, one behind the other."""
    _check_path(nodes)
    pages: Pages = array("q")
    for node in nodes:
        mine = node.tiers[tier].pages
        if mine is None:
            raise InvariantError(f"{node} has no {tier.name} pages to read")
        pages += mine
    return pages


def _check_path(nodes: Sequence[Node]) -> None:
    """Raise unless *nodes* lie on one path, top first: the locks of the last one protect them all."""
    if not nodes:
        raise InvariantError("a transfer of no node")
    expected = list(nodes)
    above: Node | None = expected.pop()
    while expected and above is not None:
        above = above.parent
        if above is expected[-1]:
            expected.pop()
    if expected:
        raise InvariantError(f"{list(nodes)} do not lie on one path, top first")


def _target(pages: Sequence[int], source: Pages) -> Pages:
    if len(pages) != len(source):
        raise InvariantError(f"{len(pages)} target pages for {len(source)} source pages")
    return page_array(pages)


def _mark_stored(nodes: Sequence[Node], num_pages: int) -> None:
    for node in nodes:
        if node.parent is None or not node.parent.is_stored:
            return
        node.stored = max(node.stored, min(node.num_pages, num_pages))
        num_pages -= node.num_pages
        if num_pages <= 0:
            return
