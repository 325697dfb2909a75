"""Counting again who holds a page. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable

from hicache_storage.errors import InvariantError


def without(held: Iterable[int], others: list[int], tier: str) -> set[int]:
    """Return *held* less the pages that somebody else than the tree holds."""
    pages = set(held)
    if len(set(others)) != len(others) or not pages.issuperset(others):
        raise InvariantError(f"{tier} pages outside the tree are held twice, or not held at all")
    return pages.difference(others)
