"""What the tree answers: plain values that stay right when the tree changes afterwards."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from hicache_storage.engine_integration.radix.node import Node, Pages
from hicache_storage.engine_integration.radix.transfers import Transfer


@dataclass(frozen=True, slots=True)
class Match:
    """The longest known prefix of a key.

        key:  [ on the device | on the host alone | not in the tree )
              0          num_device     num_device + num_host

    Attributes:
        num_device: leading pages on the device.
        num_host: pages behind them that are on the host; the prefix has no gap.
        num_stored: leading pages that L3 is known to hold.
        device_node: last node of the device part, the root if there is none. Until it is locked, the next
            eviction or insertion may remove it.
        last_node: last node of the whole match; as above.
        loads: transfers that still fill pages of the device part.
        device_pieces, host_pieces: the page ids of each part, node by node.
    """

    num_device: int
    num_host: int
    num_stored: int
    device_node: Node
    last_node: Node
    loads: tuple[Transfer, ...]
    device_pieces: Sequence[Pages]
    host_pieces: Sequence[Pages]

    @property
    def num_pages(self) -> int:
        return self.num_device + self.num_host

    def device_pages(self) -> Pages:
        """Return the page ids of the device part, in order. Cost: a memory copy."""
        return _joined(self.device_pieces)

    def host_pages(self) -> Pages:
        """Return the page ids of the part that is on the host alone, in order. Cost: a memory copy."""
        return _joined(self.host_pieces)


@dataclass(frozen=True, slots=True)
class Insertion:
    """What became of the pages that an insertion brought.

    Attributes:
        node: last node of the key; the root where nothing of it is in the tree.
        unused: the pages that the tree did not take, in order. They stay the caller's, to be freed.
        num_new: pages that the tree took.
        refused: nothing was taken, because the path belongs to another rotation of owners.
    """

    node: Node
    unused: Pages
    num_new: int
    refused: bool = False


def _joined(pieces: Sequence[Pages]) -> Pages:
    pages: Pages = array("q")
    for piece in pieces:
        pages += piece
    return pages
