"""Deadlines that pass when a test says so: for some ranks at once, whatever the scheduler does."""

from __future__ import annotations

import threading

import pytest

from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from tests.engine_integration.parallel.pipeline import PATIENCE_S

SHORT_S = 0.01
"""One that is to pass."""


def end_patience(monkeypatch: pytest.MonkeyPatch, group: ThreadGroup, came: int) -> None:
    """Let the deadline of *group*'s next meeting pass as soon as *came* ranks are there, all of them before it begins.

    Nobody may be in a meeting, and the others must not come before it has passed.
    """
    barrier, here = group._meeting.barrier, threading.Barrier(came)
    wait = barrier.wait

    def wait_together() -> int:
        if not barrier.broken:
            here.wait(PATIENCE_S)
        return wait(SHORT_S)

    monkeypatch.setattr(barrier, "wait", wait_together)
