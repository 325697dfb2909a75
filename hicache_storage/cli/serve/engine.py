"""What the server needs of an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.engine_integration.reference_engine.messages import Command, Event


class EngineClient(Protocol):
    """An engine that runs elsewhere. `send` and `receive` are called from two different threads, each from one."""

    def send(self, command: Command) -> None:
        """Have the engine get *command*, behind all that were sent before. An engine that is gone takes none."""
        ...

    def receive(self) -> Event | None:
        """Return the next event, however long it takes; None when the engine has ended as it was told to.

        Raises:
            HiCacheError: the engine has ended otherwise, and why.
        """
        ...

    def close(self, timeout_s: float) -> None:
        """End the engine, by force after *timeout_s*. A waiting `receive` returns or raises, a waiting `send` returns."""
        ...


StartEngine: TypeAlias = Callable[[EngineConfig, Path | None], EngineClient]
"""Starts an engine, with its logs in a folder, and returns once it takes requests. If it raises, no process is left."""
