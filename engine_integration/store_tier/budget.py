"""How many host pages prefetches in flight may hold. Torch-free; of one thread, the scheduler's."""

from __future__ import annotations

from hicache_storage.errors import InvariantError


class PageBudget:
    """An exact count of pages in flight.

    Args:
        capacity: most pages at one time.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._held = 0

    @property
    def held(self) -> int:
        return self._held

    @property
    def free(self) -> int:
        return self.capacity - self._held

    def acquire(self, pages: int) -> bool:
        """Take *pages* and return True, or take nothing and return False."""
        if pages > self.free:
            return False
        self._held += pages
        return True

    def release(self, pages: int) -> None:
        """Give back *pages*.

        Raises:
            InvariantError: more than are held.
        """
        if not 0 <= pages <= self._held:
            raise InvariantError(f"{pages} pages released, {self._held} held")
        self._held -= pages
