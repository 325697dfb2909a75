"""The page hashes of one request, longer as its tokens come."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_storage.layout import page_hashes


class PageChain:
    """Hashes of a request's full pages. For one thread.

    Args:
        tokens: the request's tokens, prompt and output; may grow, never changes what it has.
        seed: see `layout.request_seed`.
    """

    def __init__(self, tokens: Sequence[int], page_tokens: int, seed: str | None) -> None:
        self._tokens = tokens
        self._page_tokens = page_tokens
        self._prior = seed
        self._hashes: list[str] = []

    def up_to(self, pages: int) -> list[str]:
        """Return the hashes of the first *pages* pages, which the tokens must fill.

        Cost: every token is hashed once, over all calls.
        """
        known = len(self._hashes)
        if pages > known:
            fresh = self._tokens[known * self._page_tokens : pages * self._page_tokens]
            prior = self._hashes[-1] if known else self._prior
            self._hashes += page_hashes(fresh, self._page_tokens, prior=prior)
        return self._hashes[:pages]
