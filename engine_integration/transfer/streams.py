"""Queues of device work: CUDA streams on a GPU; on a CPU nothing, since work there is done when its call returns."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


class Mark:
    """A place in a lane's work. On a CPU it is always passed."""

    __slots__ = ("event",)

    def __init__(self, event: torch.cuda.Event | None) -> None:
        self.event = event

    def is_passed(self) -> bool:
        """Whether the work before this mark is done, or the device has failed, which `wait` then raises."""
        try:
            return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]
        except RuntimeError:
            return True

    def wait(self) -> None:
        """Block the calling thread, asleep, until the work before this mark is done."""
        if self.event is not None:
            self.event.synchronize()


class Lane:
    """A queue of work beside the engine's. Work starts in the order in which it was given.

    ``with lane.current():`` gives the lane what the calling thread does on the device inside.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def current(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def mark(self) -> Mark:
        """Return the mark behind all work that the lane has been given."""
        return Mark(None) if self._stream is None else _mark_of(self._stream)

    def after(self, mark: Mark) -> None:
        """Let work that the lane is given from now on start behind *mark*, of any lane of the device."""
        if self._stream is not None and mark.event is not None:
            self._stream.wait_event(mark.event)

    def drain(self) -> None:
        """Block until the lane has no work."""
        if self._stream is not None:
            self._stream.synchronize()


def mark_of_caller(device: torch.device) -> Mark:
    """Return the mark behind all that the calling thread's current stream has been given."""
    return _mark_of(torch.cuda.current_stream(device)) if device.type == "cuda" else Mark(None)


def _mark_of(stream: torch.cuda.Stream) -> Mark:
    # A blocking event lets a thread that waits for it sleep; others spin.
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return Mark(event)
