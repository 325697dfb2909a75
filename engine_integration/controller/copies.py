"""Copies between device and host: begun for nodes of the tree, ended when every rank's bytes are in place. Torch-free."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile
from typing import TypeVar

from hicache_storage import telemetry
from hicache_storage.engine_integration.controller.host_room import HostRoom
from hicache_storage.engine_integration.controller.pools import BackupCopies, CopyJob, LoadCopies, LoadJob
from hicache_storage.engine_integration.parallel.agree import Group, agree_mins
from hicache_storage.engine_integration.radix import Node, RadixTree, Transfer
from hicache_storage.engine_integration.tiers.slots import PageAllocator
from hicache_storage.errors import HiCacheError
from hicache_storage.telemetry import Counters

T = TypeVar("T", bound=CopyJob)


class Backups:
    """Device to host, in prefix order.

    Attributes:
        on_end: called with each transfer that has ended well, after the tree has the host pages.
        num_failed: copies that have ended badly, ever.
    """

    def __init__(
        self, tree: RadixTree, room: HostRoom, copies: BackupCopies, *, group: Group, counters: Counters
    ) -> None:
        self.on_end: Callable[[Transfer], None] = lambda _: None
        self.num_failed = 0
        self._tree = tree
        self._room = room
        self._copies = copies
        self._group = group
        self._counters = counters
        self._running: deque[tuple[Transfer, CopyJob]] = deque()

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
        """Return how many of the oldest copies are done on this rank."""
        return _leading_done(self._running)

    def take(self, count: int) -> None:
        """End the *count* oldest copies, waiting for those that still run on this rank."""
        for (transfer, _), is_good in _agreed_results(self._running, count, self._group, "backup"):
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

    def _allocate(self, wanted: int, *, with_relief: bool) -> list[int]:
        return self._room.allocate_with_relief(wanted) if with_relief else self._room.allocate_most(wanted)

    def _submit(self, nodes: Sequence[Node], pages: list[int]) -> None:
        if not pages:
            return
        transfer = self._tree.transfers.begin_backup(nodes, pages)
        with _undone_if_it_raises(lambda: self._room.slots.free(self._tree.transfers.abort(transfer))):
            job = _submitted(lambda: self._copies.submit(transfer.source, transfer.target))
            self._running.append((transfer, job))

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
        self, tree: RadixTree, device: PageAllocator, copies: LoadCopies, *, group: Group, counters: Counters
    ) -> None:
        self._tree = tree
        self._device = device
        self._copies = copies
        self._group = group
        self._counters = counters
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
            self._running.append((transfer, job))

    def jobs(self, transfers: Sequence[Transfer]) -> tuple[LoadJob, ...]:
        """Return the jobs of *transfers*, which a match has named."""
        return tuple(job for transfer, job in self._running if transfer in transfers)

    def first_failed_page(self, transfers: Sequence[Transfer]) -> int | None:
        """Return the first page whose bytes will never arrive, of *transfers* that a match has named."""
        failed = [transfer.first_page for transfer in transfers if transfer in self._failed]
        return min(failed, default=None)

    def ready(self) -> int:
        return _leading_done(self._running)

    def take(self, count: int) -> None:
        """End the *count* oldest loads, waiting for those that still run on this rank.

        A load that failed on any rank is undone as soon as nobody uses its device pages any more, and with it
        each load that went on behind it: what is on the device has no gap.
        """
        for (transfer, _), is_good in _agreed_results(self._running, count, self._group, "load"):
            if is_good and not self._is_behind_a_failed_one(transfer):
                self._tree.transfers.complete(transfer)
                self._counters.add(telemetry.PAGES_LOADED, len(transfer.source))
            else:
                self._failed.append(transfer)
                self._counters.add(telemetry.LOAD_FAILED)
        # The newest first: it may lie behind an older one, which can be undone only then.
        self._failed = [transfer for transfer in reversed(self._failed) if not self._undone(transfer)][::-1]

    def settle(self) -> None:
        self.take(len(self._running))

    def _is_behind_a_failed_one(self, transfer: Transfer) -> bool:
        above = transfer.nodes[0].parent
        path = above.path() if above is not None else []
        return any(other in self._failed for node in path for other in node.transfers)

    def _undone(self, transfer: Transfer) -> bool:
        if not self._tree.transfers.can_abort(transfer):
            return False
        self._device.free(self._tree.transfers.abort(transfer))
        return True


def _leading_done(running: deque[tuple[Transfer, T]]) -> int:
    return sum(1 for _ in takewhile(lambda entry: entry[1].done(), running))


def _agreed_results(
    running: deque[tuple[Transfer, T]], count: int, group: Group, what: str
) -> list[tuple[tuple[Transfer, T], bool]]:
    """Take the *count* oldest of *running*, wait for each, and return whether every rank has its bytes."""
    entries = list(islice(running, count))
    if not entries:
        return []

    def local() -> list[int]:
        for _, job in entries:
            job.wait()
        return [int(job.error is None) for _, job in entries]

    results = agree_mins(group, f"{what} results", local, count)
    for _ in entries:
        running.popleft()
    return list(zip(entries, map(bool, results), strict=True))


class _NotSubmitted:
    """A copy that this rank could not begin: it has failed, and all ranks hear of it as of any other failure."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.layers = _NoLayers(error)

    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> bool:  # noqa: ARG002 - there is nothing to wait for
        return True


class _NoLayers:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def wait(self, layer: int, timeout_s: float | None = None) -> None:  # noqa: ARG002 - it will not arrive
        raise HiCacheError(f"layer {layer} was not loaded: {self._error}") from self._error


def _submitted(submit: Callable[[], T]) -> T | _NotSubmitted:
    try:
        return submit()
    except Exception as error:  # noqa: BLE001 - on one rank alone, so it must not change what this rank does next
        return _NotSubmitted(error)


@contextmanager
def _undone_if_it_raises(undo: Callable[[], object]) -> Iterator[None]:
    """Call *undo* when what is inside raises: a copy that was not submitted has not begun."""
    try:
        yield
    except BaseException:
        undo()
        raise
