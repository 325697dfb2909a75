"""How much of a prefix can be restored when a model keeps more than K and V: the engine's hit policies. Integers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicache_storage.engine_integration.page_store.end_points import all_pages_end_points, trailing_pages_end_points


@dataclass(frozen=True, slots=True)
class SideHits:
    """Which pages of a side pool are there, and how many of them a prefix needs before its end; None = all of them."""

    name: str
    present: Sequence[bool]
    window_pages: int | None

    @property
    def end_points(self) -> Sequence[int]:
        """The lengths in pages, ascending, of the prefixes that the pool can serve."""
        if self.window_pages is None:
            return all_pages_end_points(self.present)
        return trailing_pages_end_points(self.present, self.window_pages)


def restorable(kv_pages: int, sides: Sequence[SideHits]) -> tuple[list[int], dict[str, int]]:
    """Return every length at which all pools can serve a prefix, ascending, and each pool's own longest.

    Args:
        kv_pages: pages of K and V that are there without a gap.
    """
    legal = set(range(1, kv_pages + 1))
    longest: dict[str, int] = {}
    for side in sides:
        points = [point for point in side.end_points if point <= kv_pages]
        if points:
            longest[side.name] = points[-1]
        legal.intersection_update(points)
    return sorted(legal), longest
