"""One node of the tree: consecutive pages, and where their KV lies."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import IntEnum, unique
from typing import TYPE_CHECKING, TypeAlias

from hicache_storage.layout import packed_page_hashes

if TYPE_CHECKING:
    from hicache_storage.engine_integration.radix.transfers import Direction, Transfer

Pages: TypeAlias = "array[int]"
"""Page ids of one tier as 64-bit integers, so that a tensor can be made over them without a copy."""


@unique
class Tier(IntEnum):
    """A tier whose pages the tree owns; what L3 holds is knowledge, not ownership."""

    DEVICE = 0
    HOST = 1


def page_array(pages: Iterable[int]) -> Pages:
    """Return *pages* as an array; the same object where it is one already."""
    return pages if isinstance(pages, array) and pages.typecode == "q" else array("q", pages)


class Stay:
    """One node in one tier.

    Attributes:
        pages: one page id per page of the node; None where the node is not in the tier.
            Never changed in place, so whoever has seen it may keep it.
        children: how many children of the node are in the tier.
        locks: locks of this node and of everything below it.
        owned: the locks among them that were taken on this node itself.
        ticket: the node's valid entry among the tier's leaves; 0 for none.
    """

    __slots__ = ("children", "locks", "owned", "pages", "ticket")

    def __init__(self) -> None:
        self.pages: Pages | None = None
        self.children = 0
        self.locks = 0
        self.owned = 0
        self.ticket = 0


class Node:
    """An edge of one or more pages and what is known about them. `Books` alone changes it.

    A node is in a tier with all of its pages or with none; it is split where that is not so.

    Attributes:
        id: rises with creation; the same on every rank that makes the same calls.
        label: its name among its parent's children.
        buffer, offset, nbytes: where the packed token ids of its pages lie; see `ids`.
        first_page: position of its first page in the sequence.
        seed: request scope of the whole path.
        rotation: owner of the sequence's first page, where pages are sharded; None where they are not.
        stored: how many of its leading pages L3 is known to hold.
        uses: insertion by a request and later matches, one each.
        last_used: the caller's counter at the last use.
        priority: the highest of the requests that inserted it; lower ones are evicted first.
        hashes: of its pages, once `page_hashes` was asked.
        transfers: running transfers that name this node; each of them holds a lock.
    """

    __slots__ = (
        "buffer",
        "children",
        "device",
        "first_page",
        "hashes",
        "host",
        "id",
        "label",
        "last_used",
        "nbytes",
        "num_pages",
        "offset",
        "parent",
        "priority",
        "rotation",
        "seed",
        "stored",
        "tiers",
        "transfers",
        "uses",
    )

    def __init__(self, node_id: int, parent: Node | None, label: bytes, ids: bytes, num_pages: int) -> None:
        self.id = node_id
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.label = label
        self.buffer, self.offset, self.nbytes = ids, 0, len(ids)
        self.num_pages = num_pages
        self.first_page: int = 0 if parent is None else parent.first_page + parent.num_pages
        self.seed: str | None = None
        self.rotation: int | None = None
        self.device = Stay()
        self.host = Stay()
        self.tiers = (self.device, self.host)
        self.stored = 0
        self.uses = 0
        self.last_used = 0
        self.priority = 0
        self.transfers: tuple[Transfer, ...] = ()
        self.hashes: list[str] | None = None

    def __repr__(self) -> str:
        stop = self.first_page + self.num_pages
        tiers = "+".join(tier.name.lower() for tier in Tier if self.tiers[tier].pages is not None)
        return f"<node {self.id}: pages [{self.first_page}, {stop}) {tiers or 'nowhere'}>"

    @property
    def is_root(self) -> bool:
        return not self.num_pages

    @property
    def ids(self) -> bytes:
        """The packed token ids of its pages.

        Cost: none, but for the first time after a split, which shares one buffer between both parts: what is
        evicted piece by piece is never copied.
        """
        if len(self.buffer) != self.nbytes:
            self.buffer = self.buffer[self.offset : self.offset + self.nbytes]
            self.offset = 0
        return self.buffer

    @property
    def is_stored(self) -> bool:
        """Whether L3 is known to hold every page up to this node's end."""
        return self.stored == self.num_pages

    def path(self) -> list[Node]:
        """Return the nodes from the top of the tree down to this one, without the root."""
        nodes = []
        node: Node | None = self
        while node is not None and node.num_pages:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def page_hashes(self) -> list[str]:
        """Return the chained hash of every page of this node; the caller must not change the list.

        Cost: hashes the pages of the path that were never asked for, once.
        """
        if self.hashes is None:
            prior = self.seed
            for node in self.path():
                if node.hashes is None:
                    node.hashes = packed_page_hashes(node.ids, len(node.ids) // node.num_pages // 4, prior=prior)
                prior = node.hashes[-1]
        return self.hashes or []

    def takes_part(self, direction: Direction) -> bool:
        """Return whether a running transfer in *direction* names this node."""
        return any(transfer.direction is direction for transfer in self.transfers)
