"""The nodes that a tier may give up next, in the order of an eviction policy."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from hicache_storage.engine_integration.options import EvictionPolicy
from hicache_storage.engine_integration.radix.node import Node, Tier
from hicache_storage.errors import ConfigError

Rank: TypeAlias = tuple[int, ...]
"""Lower ranks are evicted first. Ends with the node's id: no ties, the same order on every rank."""

_PROTECTED_USES = 2
_SLACK = 64


def _lru(node: Node) -> Rank:
    return node.priority, node.last_used, node.id


def _lfu(node: Node) -> Rank:
    return node.priority, node.uses, node.last_used, node.id


def _slru(node: Node) -> Rank:
    return node.priority, int(node.uses >= _PROTECTED_USES), node.last_used, node.id


_POLICIES: dict[EvictionPolicy, Callable[[Node], Rank]] = {"lru": _lru, "lfu": _lfu, "slru": _slru}


def policy_of(name: EvictionPolicy) -> Callable[[Node], Rank]:
    """Return the rank function of *name*.

    lru: longest unused first. lfu: fewest uses first, then longest unused. slru: what was used once first,
    then the rest, each by lru. Under all of them lower request priorities go before higher ones.

    Raises:
        ConfigError: there is no such policy.
    """
    if name not in _POLICIES:
        raise ConfigError(f"no eviction policy {name!r}; there are {', '.join(_POLICIES)}")
    return _POLICIES[name]


class Leaves:
    """A heap with one valid entry for every leaf of one tier: in it, unlocked, no child in it.

    Entries are corrected when they come up: a node's rank only rises with use, so an entry that says too
    little is put back with the rank of now, and one whose node is no leaf any more is dropped.

    Cost: O(log nodes) a call, amortised.
    """

    def __init__(self, tier: Tier, policy: Callable[[Node], Rank]) -> None:
        self._tier = tier
        self._policy = policy
        self._heap: list[tuple[Rank, int, Node]] = []
        self._last_ticket = 0
        self._num_valid = 0

    def rank(self, node: Node) -> Rank:
        """Return the node's place now. In the host tier, mere copies of device pages come after all others."""
        if self._tier is Tier.HOST:
            return (int(node.device.pages is not None), *self._policy(node))
        return self._policy(node)

    def is_leaf(self, node: Node) -> bool:
        stay = node.tiers[self._tier]
        return stay.pages is not None and not stay.children and not stay.locks

    def offer(self, node: Node) -> None:
        """Enter *node* if it is a leaf now and has no entry."""
        if not node.tiers[self._tier].ticket and self.is_leaf(node):
            self.enter(node)

    def renew(self, node: Node) -> None:
        """Forget what the entry of *node* says, whose rank has fallen, and offer it again."""
        self.forget(node)
        self.offer(node)

    def enter(self, node: Node) -> None:
        """Give *node* an entry at its rank of now, whether it is a leaf or not."""
        stay = node.tiers[self._tier]
        self._num_valid += not stay.ticket
        self._last_ticket += 1
        stay.ticket = self._last_ticket
        heappush(self._heap, (self.rank(node), stay.ticket, node))
        if len(self._heap) > 2 * self._num_valid + _SLACK:
            self._heap = [entry for entry in self._heap if entry[2].tiers[self._tier].ticket == entry[1]]
            heapify(self._heap)

    def forget(self, node: Node) -> None:
        """Make the node's entry, if it has one, invalid."""
        stay = node.tiers[self._tier]
        self._num_valid -= bool(stay.ticket)
        stay.ticket = 0

    def pop(self, is_candidate: Callable[[Node], bool]) -> Node | None:
        """Take out and return the lowest node that *is_candidate*; None if there is none.

        Entries of nodes that are not are dropped. *is_candidate* must hold for every leaf.
        """
        heap = self._heap
        while heap:
            rank, ticket, node = heap[0]
            if node.tiers[self._tier].ticket != ticket:
                heappop(heap)
            elif not is_candidate(node):
                heappop(heap)
                self.forget(node)
            elif (now := self.rank(node)) != rank:
                heapreplace(heap, (now, ticket, node))
            else:
                heappop(heap)
                self.forget(node)
                return node
        return None

    def entries(self) -> dict[Node, Rank]:
        """Return every node with a valid entry and the rank that the entry states."""
        return {node: rank for rank, ticket, node in self._heap if node.tiers[self._tier].ticket == ticket}
