"""A store that takes nothing before it is given up."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from hicache_storage.testing.memory import MemoryOptions, MemoryStore
from hicache_storage.types import ReadableBuffer, WritableBuffer, WriteResult

_PATIENCE_S = 60.0


class HeldStore(MemoryStore):
    """A store in memory whose writes wait until an engine takes its host memory back from it."""

    capabilities = replace(MemoryStore.capabilities, memory_registration=True)

    def __init__(self, options: MemoryOptions) -> None:
        super().__init__(options)
        self._given_up = threading.Event()

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        assert self._given_up.wait(_PATIENCE_S)
        return super().write(key, parts)

    def unregister_memory(self, buffer: WritableBuffer) -> None:
        self._given_up.set()
