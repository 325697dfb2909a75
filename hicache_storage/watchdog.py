"""What is done about a step that takes too long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watchdog(limit_s: float, act: Callable[[], None]) -> Iterator[None]:
    """Call *act* in a thread of its own, once, if the block is not left within *limit_s*.

    However the block is left, *act* does not begin afterwards, and the process can end: a Ctrl-C may come as early as
    while the thread starts, which is why it starts within the ``try`` and never holds up the interpreter's exit.
    """
    timer = threading.Timer(limit_s, act)
    timer.daemon = True
    try:
        timer.start()
        yield
    finally:
        timer.cancel()
        # One that is still on its way into its function finds that it was called off.
        if timer.is_alive():
            timer.join()
