"""How many host pages every rank has: the one place where that is decided. Every rank calls it. Torch-free.

A page of a stage with more layers is larger, so equal bytes have room for different numbers of tokens. The smallest number
counts for all: then every rank has room for the same at every moment, and allocation ends alike everywhere without
a word between ranks.
"""

from __future__ import annotations

from collections.abc import Callable

from hicache_storage.engine_integration.parallel.agree import Group, agree_each
from hicache_storage.engine_integration.tiers.sizing import common_capacity_tokens


def agree_host_pages(group: Group, page_tokens: int, own_pages: Callable[[], int]) -> int:
    """Return the host pages of each rank.

    Args:
        group: all ranks.
        own_pages: how many this rank has room for.

    Raises:
        RankFailure: on every rank, if *own_pages* raised on one, or a rank is gone.
        ConfigError: on every rank, if one has room for no page.
    """
    everyone = agree_each(group, "host pages", lambda: (own_pages() * page_tokens,), 1)
    return common_capacity_tokens([tokens for (tokens,) in everyone], page_tokens) // page_tokens
