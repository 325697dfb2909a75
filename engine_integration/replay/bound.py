"""The most that any cache could reuse of a trace."""

from __future__ import annotations

from hicache_storage.engine_integration.radix import reusable_pages
from hicache_storage.engine_integration.replay.trace import TraceRequest
from hicache_storage.layout import page_hashes


class ReuseBound:
    """A cache that keeps everything for ever, for requests that run one after another.

    Args:
        block_tokens: unit in which prompts can be shared; pages where it is None.
    """

    def __init__(self, page_tokens: int, block_tokens: int | None) -> None:
        self._page_tokens = page_tokens
        self._block_tokens = block_tokens or page_tokens
        self._known: set[str] = set()

    def take(self, request: TraceRequest) -> int:
        """Return how many leading tokens of a prompt earlier prompts have in common with it, in whole pages.

        One token is always left to compute.
        """
        hashes = page_hashes(request.tokens, self._block_tokens, prior=request.seed)
        shared = next((at for at, one in enumerate(hashes) if one not in self._known), len(hashes))
        self._known.update(hashes[shared:])
        pages = shared * self._block_tokens // self._page_tokens
        return min(pages, reusable_pages(len(request.tokens), self._page_tokens)) * self._page_tokens
