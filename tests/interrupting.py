"""A Ctrl-C that comes at the worst moment: something has been begun, and whoever begins it does not know yet."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def interrupting(make: Callable[P, T], made: list[T]) -> Callable[P, T]:
    """Return *make* with a Ctrl-C just before it returns; *made* gets what it makes."""

    def interrupted(*args: P.args, **kwargs: P.kwargs) -> T:
        made.append(make(*args, **kwargs))
        os.kill(os.getpid(), signal.SIGINT)
        return made[-1]

    return interrupted
