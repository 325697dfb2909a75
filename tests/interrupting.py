"""Signals in tests: a Ctrl-C that comes at the worst moment, and handlers that do not end pytest."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None], numbers: Iterable[int]) -> Iterator[None]:
    """Handle signals so within the block, and as before behind it."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


def interrupting(make: Callable[P, T], made: list[T]) -> Callable[P, T]:
    """Return *make* with a Ctrl-C just before it returns, when whoever begins something does not know yet that it has.

    *made* gets what it makes.
    """

    def interrupted(*args: P.args, **kwargs: P.kwargs) -> T:
        made.append(make(*args, **kwargs))
        os.kill(os.getpid(), signal.SIGINT)
        return made[-1]

    return interrupted
