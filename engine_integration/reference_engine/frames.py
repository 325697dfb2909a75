"""Messages on pipes: a length of four little-endian bytes, then that many bytes."""

from __future__ import annotations

import os
import threading

_LENGTH_NBYTES = 4


class FrameWriter:
    """Writes whole messages to a pipe, whose end it owns; any thread may."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._lock = threading.Lock()

    def write(self, message: bytes) -> None:
        """Write *message*; blocks while the pipe is full.

        Raises:
            BrokenPipeError: nobody reads any more, or it is closed.
        """
        frame = memoryview(len(message).to_bytes(_LENGTH_NBYTES, "little") + message)
        with self._lock:
            while frame:
                if self._descriptor is None:
                    raise BrokenPipeError("this end of the pipe is closed")
                frame = frame[os.write(self._descriptor, frame) :]

    def close(self) -> None:
        """Close this end. Calling it again does nothing."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)


def read_frame(descriptor: int) -> bytes | None:
    """Return the next message; None at the end of the pipe, also within a message."""
    head = _read(descriptor, _LENGTH_NBYTES)
    return None if head is None else _read(descriptor, int.from_bytes(head, "little"))


def _read(descriptor: int, nbytes: int) -> bytes | None:
    parts = []
    while nbytes:
        part = os.read(descriptor, nbytes)
        if not part:
            return None
        parts.append(part)
        nbytes -= len(part)
    return b"".join(parts)
