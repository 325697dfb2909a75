"""What a submitted transfer looks like to whoever waits for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from hicache_storage.engine_integration.transfer.events import LayerEvents
from hicache_storage.engine_integration.transfer.streams import Mark


class Transfer:
    """Pages on their way between a device pool and a host pool. Poll `done`, or block in `wait`.

    It ends exactly once. Before that, its host pages are pinned and the content of its target pages is undefined;
    after it, they are not pinned by it any more, and `error` says whether the bytes are in place.

    Attributes:
        device_pages: pages of the device pool.
        host_pages: pages of the host pool, one for each of *device_pages*.
        after: what the caller's stream had been given when the transfer was submitted.
    """

    def __init__(self, device_pages: Sequence[int], host_pages: Sequence[int], after: Mark) -> None:
        self.device_pages = tuple(device_pages)
        self.host_pages = tuple(host_pages)
        self.after = after
        self._ended = threading.Event()
        self._error: Exception | None = None

    @property
    def error(self) -> Exception | None:
        """Why the bytes are not in place; None if they are, or while the transfer runs."""
        return self._error

    def done(self) -> bool:
        """Whether the transfer has ended, well or with an `error`."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the transfer has ended or *timeout_s* have passed; say whether it has ended."""
        return self._ended.wait(timeout_s)

    def end(self, error: Exception | None) -> None:
        """For the worker alone: nothing of the transfer runs any more."""
        self._error = error
        self._ended.set()


class LayerTransfer(Transfer):
    """Pages on their way to the device, layer by layer.

    Attributes:
        layers: waits for single layers, the draft's included, while the rest is on its way.
    """

    def __init__(
        self, device_pages: Sequence[int], host_pages: Sequence[int], after: Mark, layers: LayerEvents
    ) -> None:
        super().__init__(device_pages, host_pages, after)
        self.layers = layers

    def end(self, error: Exception | None) -> None:
        if error is not None:
            self.layers.fail(error)
        super().end(error)
