"""Tiers in memory whose faults are scripted, and a look into them past the tiered store."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_storage.testing.faults import Fault, FaultyStore
from hicache_storage.testing.memory import MemoryStore

KEY = "key"
BODY = bytes(range(200))


class Tier(FaultyStore):
    """A store in memory with a script of faults."""

    def __init__(self, script: Sequence[Fault] = ()) -> None:
        self.memory = MemoryStore()
        super().__init__(self.memory, script)

    def plant(self, key: str = KEY, body: bytes = BODY) -> None:
        self.memory._objects[key] = body

    def has(self, key: str = KEY) -> bytes | None:
        return self.memory._objects.get(key)

    def count(self, op: str) -> int:
        """Return how many calls of this kind have arrived."""
        return [call.op for call in self.calls].count(op)


def broken(op: str) -> Tier:
    """Return a tier whose every call of *op* finds it unreachable."""
    return Tier([Fault(op, "raise")])  # type: ignore[arg-type]
