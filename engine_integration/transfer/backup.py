"""Device pages into host pages.

    direct    pool --gather--> host pages                                        one kernel
    staged    pool --gather--> staging on the device --copy--> host pages        a side stream and the copy engine

Staging has two buffers: the next pages are gathered into one while the other is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hicache_storage.engine_integration.tiers.host import HostPool
from hicache_storage.engine_integration.tiers.slots import contiguous_runs
from hicache_storage.engine_integration.transfer.options import TransferOptions, pages_tensor
from hicache_storage.engine_integration.transfer.request import Transfer
from hicache_storage.engine_integration.transfer.staging import Staging, chunks
from hicache_storage.engine_integration.transfer.streams import Mark, mark_of_caller
from hicache_storage.engine_integration.transfer.worker import TransferWorker
from hicache_storage.kernels import DevicePool, explain, gather_pages


class Backup(TransferWorker[Transfer]):
    """Copies device pages to host pages on a thread and streams of its own.

    The rule of ``auto``: direct on a CPU, where a gather straight into the host pages copies every byte once;
    staged on a GPU, where the copy engine writes host memory at full speed and leaves the processors to the model.

    Raises:
        LayoutError: the pools' pages differ.
        ConfigError: what the options ask for cannot run here.

    Attributes:
        route: ``direct`` or ``staged``.
    """

    def __init__(
        self, pool: DevicePool, host: HostPool, *, group_heads: int, options: TransferOptions | None = None
    ) -> None:
        super().__init__(pool, host, group_heads=group_heads)
        options = options or TransferOptions()
        by_rule = "direct" if pool.device.type == "cpu" else "staged"
        self.route = by_rule if options.route == "auto" else options.route
        self._impl = options.impl
        self._staging: Staging | None = None
        if self.route == "direct":
            explain(pool, host.rows, options.impl)
            return
        self._chunk_pages = max(1, options.staging_nbytes // host.page_nbytes)
        self._staging = Staging(self._chunk_pages * host.page_nbytes, pool.device, self.lanes[0])
        explain(pool, self._staging.take().memory, options.impl)

    def submit(self, device_pages: Sequence[int], host_pages: Sequence[int]) -> Transfer:
        """Begin to copy each of *device_pages* to the host page beside it, after all that the caller's stream has to do.

        Returns at once. The caller keeps the device pages as they are until the transfer is done.

        Raises:
            InvariantError: the pages do not fit each other, a host page is not held, or the worker is closed.
        """
        return self._enqueue(Transfer(device_pages, host_pages, mark_of_caller(self.pool.device)))

    def start(self, transfer: Transfer) -> Mark:
        # By host page, so that neighbours on the host become one copy.
        pairs = sorted(zip(transfer.host_pages, transfer.device_pages, strict=True))
        if self._staging is None:
            return self._start_direct(transfer, pairs)
        return self._start_staged(transfer, pairs, self._staging)

    def _start_direct(self, transfer: Transfer, pairs: Sequence[tuple[int, int]]) -> Mark:
        lane, _ = self.lanes
        lane.after(transfer.after)
        with lane.current():
            self._gather(pairs, self.host.rows, rows=pages_tensor(host for host, _ in pairs))
        return lane.mark()

    def _start_staged(self, transfer: Transfer, pairs: Sequence[tuple[int, int]], staging: Staging) -> Mark:
        gathering, copying = self.lanes
        gathering.after(transfer.after)
        for chunk in chunks(pairs, self._chunk_pages):
            buffer = staging.take()
            pages = buffer.rows(len(chunk), self.host.page_nbytes)
            gathering.after(buffer.free)
            with gathering.current():
                self._gather(chunk, pages)
            copying.after(gathering.mark())
            with copying.current():
                for at, run in contiguous_runs([host for host, _ in chunk]):
                    self.host.rows[run.start : run.stop].copy_(pages[at : at + len(run)], non_blocking=True)
            buffer.free = copying.mark()
        return copying.mark()

    def _gather(self, pairs: Sequence[tuple[int, int]], pages: torch.Tensor, rows: torch.Tensor | None = None) -> None:
        ids = pages_tensor(device for _, device in pairs)
        gather_pages(self.pool, ids, pages, group_heads=self.group_heads, impl=self._impl, rows=rows)
