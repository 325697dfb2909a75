"""How much of a prefix is usable when every page has several parts, each with its own rule. Integers in, integers out.

A page's parts (KV, draft KV, indexer, sliding window, recurrent state) lie in namespaces of their own, are
evicted on their own, and are read after somebody saw that they were there. An end point ``n`` is legal for
a part if the part can serve a prefix of ``n`` pages. What a request may use is the greatest end point that
is legal for every part, which can be less than the least of the parts' lengths.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hicache_storage.errors import LayoutError


def greatest_common_end_point(parts: Sequence[Collection[int]]) -> int:
    """Return the greatest end point that is legal for all *parts*; 0 if there is none, or no part."""
    if not parts:
        return 0
    return max(set(parts[0]).intersection(*parts[1:]), default=0)


def all_pages_end_points(present: Sequence[bool]) -> range:
    """Return the legal end points, in pages, of a part that needs every page of the prefix.

    Args:
        present: for each page, in order, whether the part's bytes are there.
    """
    gap = next((page for page, there in enumerate(present) if not there), len(present))
    return range(1, gap + 1)


def trailing_pages_end_points(present: Sequence[bool], window_pages: int) -> list[int]:
    """Return the legal end points, ascending and in pages, of a part that needs only the pages just before the end.

    Args:
        present: for each page, in order, whether the part's bytes are there.
        window_pages: how many pages before the end point are needed, or all if the prefix has fewer.

    Raises:
        LayoutError: the window has no page.
    """
    if window_pages < 1:
        raise LayoutError(f"window_pages = {window_pages}: a part needs at least one page before its end point")
    legal: list[int] = []
    unbroken = 0
    for stop, there in enumerate(present, 1):
        unbroken = unbroken + 1 if there else 0
        if unbroken >= min(window_pages, stop):
            legal.append(stop)
    return legal
