"""One event a layer, so that whoever reads layer l waits for layer l alone."""

from __future__ import annotations

import threading

import torch

from hicache_storage.engine_integration.transfer.streams import Mark, mark_of_caller
from hicache_storage.errors import HiCacheError


class LayerEvents:
    """Which layers of a load have arrived. Recorded by the loader, waited for by any threads.

    On a GPU the loader runs ahead of the device: `wait` first blocks the thread until the loader has *given* the
    device the layer's work, a moment, and then orders the thread's current stream behind it. A stream can only wait for
    an event that has been recorded, so both steps are needed. On a CPU the first step is all there is.
    """

    def __init__(self, num_layers: int, device: torch.device) -> None:
        self._device = device
        self._changed = threading.Condition()
        self._marks: list[Mark | None] = [None] * num_layers
        self._error: Exception | None = None

    @property
    def num_layers(self) -> int:
        return len(self._marks)

    def record(self, layer: int) -> None:
        """Say that the calling thread's current stream has been given all work for *layer*."""
        mark = mark_of_caller(self._device)
        with self._changed:
            self._marks[layer] = mark
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Wake whoever waits for a layer that has not been recorded, and never will be."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def is_ready(self, layer: int) -> bool:
        """Whether *layer* can be read now, without waiting."""
        mark = self._marks[layer]
        return mark is not None and mark.is_passed()

    def wait(self, layer: int, timeout_s: float | None = None) -> None:
        """Return once what the calling thread does next, on its current stream, may read *layer*.

        Raises:
            HiCacheError: the layer will not arrive: the load failed or was aborted.
            TimeoutError: it has not been recorded within *timeout_s*; None = wait for ever.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._marks[layer] or self._error, timeout_s):
                raise TimeoutError(f"layer {layer} was not loaded within {timeout_s} s")
            mark = self._marks[layer]
        if mark is None:
            raise HiCacheError(f"layer {layer} was not loaded: {self._error}") from self._error
        if mark.event is not None:
            torch.cuda.current_stream(self._device).wait_event(mark.event)
