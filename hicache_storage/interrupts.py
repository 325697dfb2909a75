"""What becomes of signals that end the process while something is begun or undone."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def heard_once() -> Iterator[None]:
    """Let the first signal that ends the process unwind it like Ctrl-C; those after it find that under way.

    So processes end and temporary files go, also where Ctrl-C is pressed again meanwhile. A signal that is ignored, as
    nohup ignores a closed terminal, stays ignored.
    """
    is_heard = False

    def hear(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_heard
        if not is_heard:
            is_heard = True
            raise KeyboardInterrupt

    with _handled_by(hear, [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]):
        yield


@contextmanager
def held() -> Iterator[None]:
    """Hear signals that would raise within the block behind it: what it begins is known by then to whoever ends it.

    For what takes a moment. Processes that are started in the block handle signals as usual.
    """
    raising = {int(number): handler for number in ENDING if callable(handler := signal.getsignal(number))}
    came: list[int] = []
    is_held = True

    def hear(number: int, frame: FrameType | None) -> None:
        if is_held:
            came.append(number)
        else:  # restored in a moment, or not at all because of a signal that has raised instead
            raising[number](number, frame)

    with ExitStack() as heard, _handled_by(hear, raising):
        try:
            yield
        finally:
            is_held = False
            for number in came:
                heard.callback(raising[number], number, None)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave signals that would end this process unheard: what is being stopped must not be left half stopped."""
    with _handled_by(signal.SIG_IGN, ENDING):
        yield


@contextmanager
def _handled_by(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers, numbers: Iterable[int]
) -> Iterator[None]:
    """Handle signals otherwise within the block, in the main thread; others may not, and no signal raises in them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: known for number in numbers if (known := signal.getsignal(number)) is not None}

    def restore() -> None:
        for number, known in reversed(before.items()):
            signal.signal(number, known)

    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        try:
            restore()
        except BaseException:
            # A signal has raised as the first were restored; the others must not stay as they are.
            restore()
            raise
