"""Page-aligned memory, touched once, for subjects that bring no host pool of their own."""

from __future__ import annotations

import mmap


class Arena:
    """Anonymous memory cut into *objects* equal, adjacent views.

    Huge pages are asked for, as inference engines do for their host pools; every subject that has no
    pool of its own uses this class, so page faults and TLB misses are the same for all.
    """

    def __init__(self, objects: int, object_nbytes: int) -> None:
        self._map = mmap.mmap(-1, objects * object_nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.madvise(mmap.MADV_HUGEPAGE)
        self._zeros = bytes(min(objects * object_nbytes, 1 << 20))
        whole = memoryview(self._map)
        self.whole = whole
        self.views = [whole[number * object_nbytes : (number + 1) * object_nbytes] for number in range(objects)]
        self.clear()

    def fill(self, content: bytes) -> None:
        self.whole[:] = content

    def clear(self) -> None:
        """Set every byte to zero."""
        step = len(self._zeros)
        for start in range(0, len(self._map), step):
            stop = min(start + step, len(self._map))
            self.whole[start:stop] = self._zeros[: stop - start]

    def wrong(self, content: bytes, first_byte: int = 0) -> int:
        """Return how many views differ, from byte *first_byte* of each on, from the same bytes of *content*."""
        size = self.views[0].nbytes
        return sum(
            bytes(view[first_byte:]) != content[number * size + first_byte : (number + 1) * size]
            for number, view in enumerate(self.views)
        )

    def close(self) -> None:
        """Give the memory back; nobody may hold a view of a view any more."""
        for view in self.views:
            view.release()
        self.whole.release()
        self._map.close()
