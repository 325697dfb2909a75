"""Where `hicache` starts. It imports nothing that takes time, so that Ctrl-C is heeded quietly while the rest is loaded."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    with _interrupts_at_once():
        from hicache_storage.cli.program import run  # noqa: PLC0415 - takes time

    return run(argv)


@contextmanager
def _interrupts_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process without a word while in the block: nothing has begun that could be told or undone.

    Python's own handler would raise in the middle of an import, of any package, some of which take it for an error.
    """
    # Elsewhere than on a terminal, or in a program that calls this, somebody may have decided otherwise.
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
