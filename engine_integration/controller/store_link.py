"""A store attached to the tiers: fetches of requests, writes of what the host has, and their books. Torch-free."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from hicache_storage import telemetry
from hicache_storage.engine_integration.controller.fetches import Fetches
from hicache_storage.engine_integration.controller.host_room import HostRoom
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.parallel.agree import Group, SingleRank, agree_each, agree_made, agree_same
from hicache_storage.engine_integration.parallel.ranks import Ranks
from hicache_storage.engine_integration.radix import Node, RadixTree, Transfer
from hicache_storage.engine_integration.store_tier.page_group import PageGroup
from hicache_storage.engine_integration.store_tier.prefetch import Prefetcher
from hicache_storage.engine_integration.store_tier.writeback import Write, Writeback, Written
from hicache_storage.errors import InvariantError
from hicache_storage.telemetry import Counters

_RETRY_STEPS = 64
"""Steps before the first retry of a write that failed; four times as many before each further one."""


@dataclass(frozen=True, slots=True)
class StoreConnection:
    """A store as one rank reaches it.

    Attributes:
        pages: the parts of a page and where they go.
        probe_group, read_group, write_group: the ranks, once for each background thread; None of them may be
            the scheduler's.
        writes: False for a deployment that only reads the store.
    """

    pages: PageGroup
    probe_group: Group = SingleRank()  # noqa: RUF009 - it has no state
    read_group: Group = SingleRank()  # noqa: RUF009 - as above
    write_group: Group = SingleRank()  # noqa: RUF009 - as above
    writes: bool = True


@dataclass(frozen=True, slots=True)
class _Running:
    write: Write
    attempt: int


@dataclass(frozen=True, slots=True)
class _Retry:
    node: Node
    attempt: int
    due_step: int


class StoreLink:
    """What a controller does with one attached store.

    Attributes:
        fetches: L3 to host, for requests.
        on_stored: called by `take` and `settle` after pages were stored, so that host pages may be given up. Not
            after a write that stored nothing: whoever goes on then would do so for ever while the store is down.
    """

    def __init__(
        self,
        connection: StoreConnection,
        tree: RadixTree,
        room: HostRoom,
        options: TierOptions,
        *,
        ranks: Ranks,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        prefetcher = Prefetcher(
            connection.pages,
            probe_group=connection.probe_group,
            read_group=connection.read_group,
            batch_pages=options.store_batch_pages,
            counters=counters,
            clock=clock,
            patience_s=ranks.patience_s,
        )
        self.fetches = Fetches(prefetcher, tree, room, options, sync=ranks.sync, counters=counters, clock=clock)
        self.on_stored: Callable[[], None] = lambda: None
        self._tree = tree
        self._options = options
        self._counters = counters
        self._writes = connection.writes
        self._pages = connection.pages
        self._sync = ranks.sync
        self._write_group = connection.write_group
        with ExitStack() as undo:
            undo.callback(prefetcher.close)
            self._writeback = Writeback(
                connection.pages, group=connection.write_group, counters=counters, patience_s=ranks.patience_s
            )
            undo.pop_all()
        self._writing: dict[Transfer, _Running] = {}
        self._retries: deque[_Retry] = deque()
        self._step = 0
        self._has_stored = False

    @property
    def num_writing(self) -> int:
        return len(self._writing)

    def store(self, node: Node, attempt: int = 0) -> None:
        """Begin to store what of the path to *node* is on the host and not known to be stored."""
        if not self._writes:
            return
        for piece in _pieces(self._tree.unstored(node)):
            transfer = self._tree.transfers.begin_store(piece)
            above = transfer.nodes[0].parent
            front = [self._writing[other] for other in above.transfers if other in self._writing] if above else []
            prefix = self._tree.page_hashes(above) if above else ()
            write = Write(transfer.hashes, transfer.source, prefix, front[0].write if front else None)
            self._writing[transfer] = _Running(write, attempt)
            self._writeback.write(write)

    def ready(self) -> tuple[int, int, int]:
        """Return how many acknowledgements this rank has: of probes, of reads, of writes."""
        return *self.fetches.ready(), self._writeback.written.ready()

    def take(self, probed: int, progress: int, written: int) -> None:
        """Apply as many acknowledgements of each kind, waiting for those that are not there yet; then what is due.

        Raises:
            RankFailure: one does not come.
        """
        self.fetches.take(probed, progress)
        for ack in self._writeback.written.take(written):
            self._end_write(ack)
        self._tell()
        self._step += 1
        while self._retries and self._retries[0].due_step <= self._step:
            retry = self._retries.popleft()
            node = _in_tree(retry.node)
            if node is not None:
                self.store(node, retry.attempt)

    def settle_write(self) -> bool:
        """Wait for the oldest running write and apply it; say whether there was one.

        Every rank waits for the same one, since all began the same writes.
        """
        if not self._writing:
            return False
        self._end_write(self._writeback.written.wait())
        return True

    def settle(self) -> bool:
        """Wait until nothing is being fetched or written; say whether something was."""
        was_fetching = self.fetches.settle()
        was_writing = bool(self._writing)
        while self.settle_write():
            pass
        self._tell()
        return was_fetching or was_writing

    def clear(self) -> int:
        """Delete everything of this namespace from the store; return how many objects all ranks have deleted.

        Every rank calls it, and believes in nothing there from then on, also where it raises. None is through before
        all are: one that still deletes would take what another one has stored since.

        Raises:
            RankFailure: a rank could not; what was deleted is gone all the same.
        """
        self.settle()
        self._retries.clear()
        self._tree.forget_stored()
        # Nothing is being written any more, so the thread that writes leaves its group to this one.
        return sum(
            count for (count,) in agree_each(self._write_group, "flush store", lambda: (self._pages.clear(),), 1)
        )

    def close(self) -> None:
        """Stop the fetches, finish the writes, end the threads, and leave no page or budget held."""
        self.fetches.close()
        self._writeback.close()
        for ack in self._writeback.written.take(len(self._writing)):
            self._end_write(ack)
        self._retries.clear()

    def _tell(self) -> None:
        has_stored, self._has_stored = self._has_stored, False
        if has_stored:
            self.on_stored()

    def _end_write(self, ack: Written) -> None:
        transfer = next(iter(self._writing))
        running = self._writing.pop(transfer)
        if running.write is not ack.write:
            raise InvariantError("an L3 write was acknowledged before an older one")
        self._sync.took(ack.identity)
        attempt = running.attempt
        wanted = len(transfer.source)
        last = transfer.nodes[-1]
        self._tree.transfers.complete(transfer, ack.pages)
        self._counters.add(telemetry.PAGES_WRITTEN_BACK, ack.pages)
        self._has_stored |= ack.pages > 0
        if ack.pages == wanted:
            return
        self._counters.add(telemetry.PAGES_NOT_WRITTEN_BACK, wanted - ack.pages)
        if not ack.pages:
            # The store may have evicted the pages in front; believing in them would keep this prefix out for ever.
            self._tree.forget_stored(last.path()[0])
        if attempt < self._options.store_retries:
            due = self._step + _RETRY_STEPS * 4**attempt
            insort(self._retries, _Retry(last, attempt + 1, due), key=lambda retry: retry.due_step)


def agree_link(connection: StoreConnection, make: Callable[[], StoreLink]) -> StoreLink:
    """Return what *make* returns, once every rank has made its own and uses the store as the others do.

    Raises:
        RankFailure: on every rank; no rank keeps anything.
    """
    # The thread that will write, and own this group, does not run before the last agreement.
    agree_same(connection.write_group, "attach", lambda: int(connection.writes))
    return agree_made(connection.write_group, "attach", make, StoreLink.close)


def _pieces(nodes: list[Node]) -> list[list[Node]]:
    """Cut *nodes*, of one path and top first, where one between them is left out."""
    pieces: list[list[Node]] = []
    for node in nodes:
        if pieces and node.parent is pieces[-1][-1]:
            pieces[-1].append(node)
        else:
            pieces.append([node])
    return pieces


def _in_tree(node: Node) -> Node | None:
    """Return *node*, or the one that it was joined with, if it is still in the tree."""
    while node.parent is None and node.children:
        # A node that is joined with its only child goes on naming it; one that is removed has no child.
        (node,) = node.children.values()
    return None if node.parent is None else node
