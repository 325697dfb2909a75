"""The threads on which a guarded store is asked."""

from __future__ import annotations

import threading

_PATIENT_S = 60.0


def join_guards() -> None:
    """Every call that nobody waits for any more has ended."""
    for thread in threading.enumerate():
        if thread.name.startswith("hicache-guard"):
            thread.join(_PATIENT_S)
            assert not thread.is_alive()
