"""One deadline for everything that happens on behalf of a call, however deep: no attempt may outlive it.

A layer or a caller opens a deadline; a backend asks how much of it is left when an operation begins and
shortens its own timeouts to that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ends_at: ContextVar[float | None] = ContextVar("hicache_deadline", default=None)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Everything in the block that asks has *seconds* left, or less if an outer deadline ends before."""
    outer = _ends_at.get()
    mine = time.monotonic() + seconds
    token = _ends_at.set(mine if outer is None else min(outer, mine))
    try:
        yield
    finally:
        _ends_at.reset(token)


def remaining_s(own_s: float) -> float:
    """Return the seconds that an operation may take: *own_s*, or what is left of the deadline; never below 0."""
    ends_at = _ends_at.get()
    return own_s if ends_at is None else max(0.0, min(own_s, ends_at - time.monotonic()))
