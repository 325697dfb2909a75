"""The thread that performs transfers in the order in which they were submitted, whatever goes wrong with one."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, Self, TypeVar

import torch

from hicache_storage.engine_integration.tiers.host import HostPool
from hicache_storage.engine_integration.transfer.request import Transfer
from hicache_storage.engine_integration.transfer.streams import Lane, Mark
from hicache_storage.errors import HiCacheError, InvariantError, LayoutError
from hicache_storage.kernels import DevicePool
from hicache_storage.telemetry import RareWarnings

T = TypeVar("T", bound=Transfer)

_log = logging.getLogger(__name__)

_MOST_RUNNING = 4
"""Transfers that the device has at a time; more would only make a failure reach further."""


class TransferWorker(ABC, Generic[T]):
    """A thread with a queue of transfers, started by the first. Make one for each direction; close it before the host pool.

    For every transfer, in this order: its host pages are pinned by `submit`, its bytes move, its pages are unpinned,
    `completed` or `failed` goes up by one, and it is done. So a page is never given to somebody else while
    bytes move, and whoever counts never counts what has not arrived. Transfers end in the order of their submission.

    Raises:
        LayoutError: pages of *host* are not pages of *pool* in groups of *group_heads*.

    Attributes:
        pool: the engine's tensors, the draft's layers included where it has some.
        host: the host pool.
        format: how a page of *pool* lies in a page of *host*.
        group_heads: heads of a head group; 0 for MLA.
        lanes: where the device's work is queued.
    """

    def __init__(self, pool: DevicePool, host: HostPool, *, group_heads: int) -> None:
        self.pool = pool
        self.host = host
        self.group_heads = group_heads
        self.format = pool.page_format(group_heads)
        if self.format.page_nbytes != host.page_nbytes:
            raise LayoutError(f"host pages have {host.page_nbytes} bytes, the pool's pages {self.format.page_nbytes}")
        self.lanes = (Lane(pool.device), Lane(pool.device))
        self._completed = self._failed = 0
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self._running: deque[tuple[T, Mark]] = deque()
        self._lock = threading.Lock()
        self._closed = self._aborting = False
        self._warnings = RareWarnings(_log)
        self._thread = threading.Thread(target=self._run, name=f"hicache-{type(self).__name__.lower()}", daemon=True)

    @abstractmethod
    def start(self, transfer: T) -> Mark:
        """Give the lanes all work of *transfer*, on the worker's thread; return the mark behind it."""

    @property
    def completed(self) -> int:
        """How many transfers have all their bytes in place."""
        return self._completed

    @property
    def failed(self) -> int:
        """How many transfers ended with an error."""
        return self._failed

    def close(self, *, abort: bool = False) -> None:
        """End the thread once every submitted transfer has ended. Calling it again does nothing.

        Args:
            abort: transfers that have not begun end with an error instead.
        """
        with self._lock:
            self._aborting |= abort
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(abort=error is not None)

    def _enqueue(self, transfer: T) -> T:
        """Pin the host pages of *transfer* and queue it.

        Raises:
            InvariantError: its pages do not fit each other or the pools, or the worker is closed; nothing is pinned.
            RuntimeError: the system has no thread left; nothing is pinned or queued.
        """
        self._check_pages(transfer.device_pages, transfer.host_pages)
        with self._lock:
            if self._closed:
                raise InvariantError("the transfer worker is closed")
            if self._thread.ident is None:
                # Before anything is queued: where it fails, whoever submitted takes the pages back.
                self._thread.start()
            self.host.slots.pin(transfer.host_pages)
            self._queue.put(transfer)
        return transfer

    def _check_pages(self, device_pages: Sequence[int], host_pages: Sequence[int]) -> None:
        if len(device_pages) != len(host_pages):
            raise InvariantError(f"{len(device_pages)} device pages for {len(host_pages)} host pages")
        if device_pages and not 0 <= min(device_pages) <= max(device_pages) < self.pool.num_pages:
            bounds = f"[{min(device_pages)}, {max(device_pages)}]"
            raise InvariantError(f"device pages lie in {bounds}, the pool has [0, {self.pool.num_pages})")

    # -- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        # An engine's tensors may be inference tensors, which only inference mode may write.
        with torch.inference_mode():
            while True:
                while self._running and self._running[0][1].is_passed():
                    self._finish_oldest()
                if self._running and (self._queue.empty() or len(self._running) == _MOST_RUNNING):
                    self._finish_oldest()
                    continue
                transfer = self._queue.get()
                if transfer is None:
                    break
                self._begin(transfer)
        while self._running:
            self._finish_oldest()

    def _begin(self, transfer: T) -> None:
        if self._aborting:
            error: Exception | None = HiCacheError("aborted: the transfer worker was closed")
        else:
            error = self._failure(lambda: self._running.append((transfer, self.start(transfer))))
        if error is None:
            return
        while self._running:
            self._finish_oldest()
        # Part of its work may be with the device, and must not outlive the pins.
        for lane in self.lanes:
            self._failure(lane.drain)
        self._settle(transfer, error)

    def _finish_oldest(self) -> None:
        transfer, mark = self._running.popleft()
        self._settle(transfer, self._failure(mark.wait))

    def _settle(self, transfer: T, error: Exception | None) -> None:
        broken = self._failure(lambda: self.host.slots.unpin(transfer.host_pages))
        error = error or broken
        if error is None:
            self._completed += 1
        else:
            self._failed += 1
        transfer.end(error)

    def _failure(self, step: Callable[[], object]) -> Exception | None:
        """Perform *step*; return what it raised."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the one place where a fault becomes one transfer's error
            cause = type(error).__name__
            self._warnings.warn(cause, "transfer.failed worker=%s %s: %s", self._thread.name, cause, error)
            return error
        return None
