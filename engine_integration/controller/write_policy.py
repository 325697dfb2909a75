"""Which prefixes go to the host and to L3, and when. Torch-free."""

from __future__ import annotations

from hicache_storage.engine_integration.controller.copies import Backups
from hicache_storage.engine_integration.controller.store_link import StoreLink
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.radix import Node, RadixTree, Transfer


class WritePolicy:
    """Backs up what was used often enough, in prefix order, and stores what was backed up.

    Attributes:
        link: the attached store, None without one.
    """

    def __init__(self, tree: RadixTree, backups: Backups, options: TierOptions) -> None:
        self.link: StoreLink | None = None
        self._tree = tree
        self._backups = backups
        self._least_uses = options.backup_hits
        self._unfinished: dict[Node, None] = {}
        backups.on_end = self._backed_up

    def used(self, node: Node) -> None:
        """Copy the path to *node* as far down as it was used often enough; what is on the host already goes to L3."""
        nodes = []
        for one in self._tree.unbacked(node):
            if self._least_uses is None or one.uses < self._least_uses:
                break
            nodes.append(one)
        if nodes:
            self._begin(nodes)
        elif self.link is not None:
            self.link.store(node)

    def go_on(self) -> None:
        """Go on with prefixes longer than the host had room for, after a part of them was stored."""
        unfinished, self._unfinished = self._unfinished, {}
        for node in unfinished:
            # A node that left the tree has no parent; one that is stored needs the host for nothing.
            nodes = [one for one in self._tree.unbacked(node) if not one.is_stored] if node.parent is not None else []
            if nodes:
                self._begin(nodes)

    def forget(self) -> None:
        """Leave unfinished prefixes as they are."""
        self._unfinished.clear()

    def _begin(self, nodes: list[Node]) -> None:
        wanted = sum(one.num_pages for one in nodes)
        if self._backups.begin(nodes) < wanted and self.link is not None:
            self._unfinished[nodes[-1]] = None

    def _backed_up(self, transfer: Transfer) -> None:
        if self.link is not None:
            self.link.store(transfer.nodes[-1])
