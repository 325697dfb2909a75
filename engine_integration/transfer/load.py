"""Host pages into device pages, layer by layer.

    direct    host pages --scatter one layer--> pool                                         a kernel a layer
    staged    host pages --copy some layers--> staging on the device --scatter--> pool       copy engine and side stream

Within a head group the layers of a page follow each other, so a staged load copies a block of layers of one
group of one page at a time; where a block is the whole page, a run of pages is one copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from hicache_storage.engine_integration.tiers.host import HostPool
from hicache_storage.engine_integration.tiers.slots import contiguous_runs
from hicache_storage.engine_integration.transfer.events import LayerEvents
from hicache_storage.engine_integration.transfer.options import TransferOptions, pages_tensor
from hicache_storage.engine_integration.transfer.request import LayerTransfer
from hicache_storage.engine_integration.transfer.staging import Staging, chunks
from hicache_storage.engine_integration.transfer.streams import Mark, mark_of_caller
from hicache_storage.engine_integration.transfer.worker import TransferWorker
from hicache_storage.errors import ConfigError
from hicache_storage.kernels import DevicePool, PageFormat, explain, scatter_pages


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Consecutive layers that a staged load moves together.

    Attributes:
        layers: of the whole pool.
        pool: these layers alone; its pages, of `page_nbytes`, are what lies in staging.
    """

    layers: range
    pool: DevicePool
    page_nbytes: int


class Load(TransferWorker[LayerTransfer]):
    """Copies host pages to device pages on a thread and streams of its own, an event a layer.

    The rule of ``auto``: direct on a CPU, and on a GPU whose kernels can read the host pages: then every byte
    crosses the bus once and stops nowhere, and a layer is ready as soon as its own bytes are there. Staged
    where they cannot: the host pages are not page-locked, or Triton is missing.

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
        self._impl = options.impl
        self._staging: Staging | None = None
        if options.route == "direct":
            explain(pool, host.rows, options.impl)
        self.route = _route_by_rule(pool, host, options) if options.route == "auto" else options.route
        if self.route == "direct":
            return
        self._blocks = [
            Block(layers, part, part.page_format(group_heads).page_nbytes)
            for layers in plan_blocks(self.format, options.piece_nbytes)
            for part in [pool.select_layers(layers)]
        ]
        least = max(block.page_nbytes for block in self._blocks)
        self._staging = Staging(max(least, options.staging_nbytes), pool.device, self.lanes[0])
        explain(pool, self._staging.take().memory, options.impl)

    def submit(self, device_pages: Sequence[int], host_pages: Sequence[int]) -> LayerTransfer:
        """Begin to fill each of *device_pages* from the host page beside it, after all that the caller's stream has to do.

        Returns at once. The caller keeps everybody off the device pages until their layers have arrived.

        Raises:
            InvariantError: the pages do not fit each other, a host page is not held, or the worker is closed.
        """
        device = self.pool.device
        layers = LayerEvents(self.pool.num_layers, device)
        return self._enqueue(LayerTransfer(device_pages, host_pages, mark_of_caller(device), layers))

    def start(self, transfer: LayerTransfer) -> Mark:
        # By host page, so that neighbours on the host are read as one.
        pairs = sorted(zip(transfer.host_pages, transfer.device_pages, strict=True))
        if self._staging is None:
            return self._start_direct(transfer, pairs)
        return self._start_staged(transfer, pairs, self._staging)

    def _start_direct(self, transfer: LayerTransfer, pairs: Sequence[tuple[int, int]]) -> Mark:
        lane, _ = self.lanes
        lane.after(transfer.after)
        rows = pages_tensor(host for host, _ in pairs)
        with lane.current():
            for layer in range(self.pool.num_layers):
                self._scatter(self.host.rows, self.pool, pairs, rows=rows, layers=range(layer, layer + 1))
                transfer.layers.record(layer)
        return lane.mark()

    def _start_staged(self, transfer: LayerTransfer, pairs: Sequence[tuple[int, int]], staging: Staging) -> Mark:
        copying, scattering = self.lanes
        scattering.after(transfer.after)
        for block in self._blocks:
            for chunk in chunks(pairs, staging.nbytes // block.page_nbytes):
                buffer = staging.take()
                pages = buffer.rows(len(chunk), block.page_nbytes)
                copying.after(buffer.free)
                with copying.current():
                    self._copy(block, [host for host, _ in chunk], pages)
                scattering.after(copying.mark())
                with scattering.current():
                    self._scatter(pages, block.pool, chunk)
                buffer.free = scattering.mark()
            with scattering.current():
                for layer in block.layers:
                    transfer.layers.record(layer)
        return scattering.mark()

    def _copy(self, block: Block, host_pages: Sequence[int], pages: torch.Tensor) -> None:
        """Copy the layers of *block* of *host_pages* to *pages* ``[P, block.page_nbytes]``."""
        rows = self.host.rows
        if len(block.layers) == self.format.layers:
            for at, run in contiguous_runs(host_pages):
                pages[at : at + len(run)].copy_(rows[run.start : run.stop], non_blocking=True)
            return
        nbytes = len(block.layers) * self.format.cell_nbytes
        for group in range(self.format.groups):
            offset = self.format.offset(group, block.layers.start)
            for row, page in enumerate(host_pages):
                piece = rows[page, offset : offset + nbytes]
                pages[row, group * nbytes : (group + 1) * nbytes].copy_(piece, non_blocking=True)

    def _scatter(
        self,
        pages: torch.Tensor,
        pool: DevicePool,
        pairs: Sequence[tuple[int, int]],
        rows: torch.Tensor | None = None,
        layers: range | None = None,
    ) -> None:
        ids = pages_tensor(device for _, device in pairs)
        scatter_pages(pages, pool, ids, group_heads=self.group_heads, impl=self._impl, rows=rows, layers=layers)


def plan_blocks(page_format: PageFormat, piece_nbytes: int) -> Iterator[range]:
    """Yield the layers of *page_format* in blocks, so large that those of one group have at least *piece_nbytes*."""
    step = max(1, -(-piece_nbytes // page_format.cell_nbytes))
    for start in range(0, page_format.layers, step):
        yield range(start, min(start + step, page_format.layers))


def _route_by_rule(pool: DevicePool, host: HostPool, options: TransferOptions) -> str:
    try:
        choice = explain(pool, host.rows, options.impl)
    except ConfigError:
        return "staged"
    return "direct" if pool.device.type == "cpu" or choice.impl == "triton" else "staged"
