"""Where `hicache` starts. It imports nothing that takes time, so that Ctrl-C is heeded quietly while the rest is loaded."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        argv: None for those of the process, which is expected to end with that status.
    """
    with _interrupts_at_once():
        from hicache_storage.cli.program import run  # noqa: PLC0415 - takes time

    try:
        return run(argv)
    except KeyboardInterrupt:
        # Another one, while the first was told of.
        return INTERRUPTED
    finally:
        if argv is None and _heeds_interrupts():
            # Python's own handler would raise in the middle of the interpreter's exit, which shows that at length.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _interrupts_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process without a word while in the block: nothing has begun that could be told or undone.

    Python's own handler would raise in the middle of an import, of any package, some of which take it for an error.
    """
    if not _heeds_interrupts():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _heeds_interrupts() -> bool:
    """Say whether Ctrl-C raises here; elsewhere than on a terminal, or in a program that calls this, it may not."""
    is_raised = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return is_raised and threading.current_thread() is threading.main_thread()


if __name__ == "__main__":
    sys.exit(main())
