"""Copies between device and host: begun for nodes of the tree, ended when every rank's bytes are in place. Torch-free."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from hicache_storage import telemetry
from hicache_storage.engine_integration.controller.ended import NotSubmitted, ended_copies
from hicache_storage.engine_integration.controller.host_room import HostRoom
from hicache_storage.engine_integration.controller.pools import BackupCopies, CopyJob, LoadCopies, LoadJob
from hicache_storage.engine_integration.parallel.ranks import Ranks
from hicache_storage.engine_integration.radix import Node, RadixTree, Transfer
from hicache_storage.engine_integration.tiers.slots import PageAllocator
from hicache_storage.telemetry import Counters

T = TypeVar("T", bound=CopyJob)


class Backups:
    """Device to host, in prefix order.

    Attributes:
        on_end: called with each transfer that has ended well, after the tree has the host pages.
        num_failed: copies that have ended badly, ever.
    """

    def __init__(
        self, tree: RadixTree, room: HostRoom, copies: BackupCopies, *, ranks: Ranks, counters: Counters
    ) -> None:
        self.on_end: Callable[[Transfer], None] = lambda _: None
        self.num_failed = 0
        self._tree = tree
        self._room = room
        self._copies = copies
        self._sync = ranks.sync
        self._counters = counters
        self._ended = ended_copies("backup", ranks.backups, patience_s=ranks.patience_s)
        self._running: deque[Transfer] = deque()

    @property
    def num_running(self) -> int:
        return len(self._running)

    def begin(self, nodes: Sequence[Node], *, with_relief: bool = False) -> int:
        """Begin to copy *nodes*, unbacked ones of one path and top first; return how many pages are on their way.

        Where the host has not room for all, the leading pages go and the last node that goes in part is split.

        Args:
            with_relief: wait for others to make room rather than copy nothing.
        """
        wanted = sum(node.num_pages for node in nodes)
        pages = self._allocate(wanted, with_relief=with_relief)
        self._submit(self._cut(nodes, len(pages)), pages)
        return len(pages)

    def begin_end_of(self, node: Node, *, with_relief: bool = False) -> int:
        """Begin to copy as many of the last pages of an unbacked *node* as there is room for; return how many."""
        pages = self._allocate(node.num_pages, with_relief=with_relief)
        if 0 < len(pages) < node.num_pages:
            self._tree.split(node, node.num_pages - len(pages))
        self._submit([node], pages)
        return len(pages)

    def ready(self) -> int:
        """Return how many of the oldest copies have ended, as far as this rank knows."""
        return self._ended.ready()

    def take(self, count: int) -> None:
        """End the *count* oldest copies, waiting for those that still run.

        Raises:
            RankFailure: a rank is gone.
        """
        for _ in range(count):
            is_good = self._ended.take()
            transfer = self._running.popleft()
            self._sync.took(_identity("backup", transfer, is_good=is_good))
            if is_good:
                self._tree.transfers.complete(transfer)
                self._counters.add(telemetry.PAGES_BACKED_UP, len(transfer.source))
                self.on_end(transfer)
            else:
                self._room.slots.free(self._tree.transfers.abort(transfer))
                self.num_failed += 1
                self._counters.add(telemetry.BACKUP_FAILED)

    def settle(self) -> bool:
        """End every running copy, waiting for it; say whether there was one."""
        had = bool(self._running)
        self.take(len(self._running))
        return had

    def close(self) -> None:
        """End the thread that hears of other ranks' copies, if there is one; what nobody has heard of has failed.

        Pages that a copy of this rank's own still writes to stay taken.
        """
        if self._ended.close():
            while self._running:
                self._room.slots.free(self._tree.transfers.abort(self._running.pop()))

    def _allocate(self, wanted: int, *, with_relief: bool) -> list[int]:
        return self._room.allocate_with_relief(wanted) if with_relief else self._room.allocate_most(wanted)

    def _submit(self, nodes: Sequence[Node], pages: list[int]) -> None:
        if not pages:
            return
        transfer = self._tree.transfers.begin_backup(nodes, pages)
        with _undone_if_it_raises(lambda: self._room.slots.free(self._tree.transfers.abort(transfer))):
            job = _submitted(lambda: self._copies.submit(transfer.source, transfer.target))
            self._ended.add(job)
            self._running.append(transfer)

    def _cut(self, nodes: Sequence[Node], num_pages: int) -> list[Node]:
        """Return the leading *num_pages* pages of *nodes* as whole nodes."""
        fitting: list[Node] = []
        for node in nodes:
            if num_pages < node.num_pages:
                if num_pages:
                    fitting.append(self._tree.split(node, num_pages))
                break
            fitting.append(node)
            num_pages -= node.num_pages
        return fitting


class Loads:
    """Host to device. The tree has the device pages at once; whoever reads them waits for the job's layers."""

    def __init__(
        self, tree: RadixTree, device: PageAllocator, copies: LoadCopies, *, ranks: Ranks, counters: Counters
    ) -> None:
        self._tree = tree
        self._device = device
        self._copies = copies
        self._sync = ranks.sync
        self._counters = counters
        self._ended = ended_copies("load", ranks.loads, patience_s=ranks.patience_s)
        self._running: deque[tuple[Transfer, LoadJob]] = deque()
        self._failed: list[Transfer] = []

    @property
    def num_running(self) -> int:
        return len(self._running)

    def begin(self, nodes: Sequence[Node], device_pages: Sequence[int]) -> None:
        """Begin to fill *device_pages*, which become the tree's, with *nodes*, that are on the host alone.

        A copy that cannot be submitted is one that has failed.
        """
        transfer = self._tree.transfers.begin_load(nodes, device_pages)
        with _undone_if_it_raises(lambda: self._device.free(self._tree.transfers.abort(transfer))):
            job = _submitted(lambda: self._copies.submit(transfer.target, transfer.source))
            self._ended.add(job)
            self._running.append((transfer, job))

    def jobs(self, transfers: Sequence[Transfer]) -> tuple[LoadJob, ...]:
        """Return the jobs of *transfers*, which a match has named."""
        return tuple(job for transfer, job in self._running if transfer in transfers)

    def first_failed_page(self, transfers: Sequence[Transfer]) -> int | None:
        """Return the first page whose bytes will never arrive, of *transfers* that a match has named."""
        failed = [transfer.first_page for transfer in transfers if transfer in self._failed]
        return min(failed, default=None)

    def ready(self) -> int:
        """Return how many of the oldest loads have ended, as far as this rank knows."""
        return self._ended.ready()

    def take(self, count: int) -> None:
        """End the *count* oldest loads, waiting for those that still run.

        A load that failed on any rank is undone as soon as nobody uses its device pages any more, and with it
        each load that went on behind it: what is on the device has no gap.

        Raises:
            RankFailure: a rank is gone.
        """
        for _ in range(count):
            is_good = self._ended.take()
            transfer, _ = self._running.popleft()
            self._sync.took(_identity("load", transfer, is_good=is_good))
            if is_good and not self._is_behind_a_failed_one(transfer):
                self._tree.transfers.complete(transfer)
                self._counters.add(telemetry.PAGES_LOADED, len(transfer.source))
            else:
                self._failed.append(transfer)
                self._counters.add(telemetry.LOAD_FAILED)
        self._undo_failed()

    def settle(self) -> None:
        """End every running load, waiting for it."""
        self.take(len(self._running))

    def close(self) -> None:
        """End the thread that hears of other ranks' loads, if there is one; what nobody has heard of has failed.

        Pages that somebody uses, or that a copy of this rank's own still writes to, stay taken.
        """
        if self._ended.close():
            self._failed += [transfer for transfer, _ in self._running]
            self._running.clear()
            self._undo_failed()

    def _undo_failed(self) -> None:
        # The newest first: it may lie behind an older one, which can be undone only then.
        self._failed = [transfer for transfer in reversed(self._failed) if not self._undone(transfer)][::-1]

    def _is_behind_a_failed_one(self, transfer: Transfer) -> bool:
        above = transfer.nodes[0].parent
        path = above.path() if above is not None else []
        return any(other in self._failed for node in path for other in node.transfers)

    def _undone(self, transfer: Transfer) -> bool:
        if not self._tree.transfers.can_abort(transfer):
            return False
        self._device.free(self._tree.transfers.abort(transfer))
        return True


def _identity(kind: str, transfer: Transfer, *, is_good: bool) -> str:
    """Return what tells *transfer*, and how it ended, from any other, the same on every rank."""
    return f"{kind} {transfer.nodes[-1].id} {transfer.first_page} {len(transfer.source)} {transfer.target[0]} {is_good}"


def _submitted(submit: Callable[[], T]) -> T | NotSubmitted:
    try:
        return submit()
    except Exception as error:  # noqa: BLE001 - on one rank alone, so it must not change what this rank does next
        return NotSubmitted(error)


@contextmanager
def _undone_if_it_raises(undo: Callable[[], object]) -> Iterator[None]:
    """Call *undo* when what is inside raises: a copy that was not submitted has not begun."""
    try:
        yield
    except BaseException:
        undo()
        raise
