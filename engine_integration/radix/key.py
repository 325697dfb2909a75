"""What is looked up in the tree: the tokens of whole pages, packed, in one request scope."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hicache_storage.errors import LayoutError
from hicache_storage.layout import check_page_hashes, pack_tokens

_TOKEN_NBYTES = 4


@dataclass(frozen=True, slots=True)
class Key:
    """The full pages of a token sequence.

    Attributes:
        ids: token ids as four little-endian bytes each; whole pages only.
        page_nbytes: bytes of *ids* that one page takes.
        seed: `layout.request_seed` of the request; keys of different seeds share nothing.
    """

    ids: bytes
    page_nbytes: int
    seed: str | None = None

    @classmethod
    def of(cls, tokens: Iterable[int], page_tokens: int, *, seed: str | None = None) -> Key:
        """Return the key of *tokens*; a last page that is not full is left out.

        Cost: a memory copy where *tokens* is an ``array("I")``, which a request should keep.

        Raises:
            LayoutError: as `packed` does, or a token id is not in ``[0, 2**32)``.
        """
        return cls.packed(pack_tokens(tokens), page_tokens, seed=seed)

    @classmethod
    def packed(cls, ids: bytes, page_tokens: int, *, seed: str | None = None) -> Key:
        """Return the key of tokens that `layout.pack_tokens` has packed.

        Raises:
            LayoutError: *page_tokens* is below 1, or *seed* is none that `layout.request_seed` returns.
        """
        if page_tokens < 1:
            raise LayoutError(f"page_tokens = {page_tokens}: a page has at least one token")
        if seed is not None:
            check_page_hashes([seed])
        page_nbytes = page_tokens * _TOKEN_NBYTES
        full = len(ids) - len(ids) % page_nbytes
        return cls(ids if full == len(ids) else ids[:full], page_nbytes, seed)

    @property
    def num_pages(self) -> int:
        return len(self.ids) // self.page_nbytes

    @property
    def top_label(self) -> bytes:
        """The name of the first page among the root's children: the seed and the page's tokens.

        A seed has 64 digits or is absent, so no two scopes can spell the same label.
        """
        page = self.ids[: self.page_nbytes]
        return page if self.seed is None else self.seed.encode() + page

    def first(self, num_pages: int) -> Key:
        """Return the key of the first *num_pages* pages, or of all where there are fewer."""
        return Key(self.ids[: num_pages * self.page_nbytes], self.page_nbytes, self.seed)


def reusable_pages(num_tokens: int, page_tokens: int) -> int:
    """Return how many leading pages of a prompt may come from a cache.

    The last token always has to be computed: its output is the first one of the answer. A prompt that is
    cached up to its end therefore gives back its last page.
    """
    return max(0, num_tokens - 1) // page_tokens


def shared_pages(ids: bytes, offset: int, edge: bytes, page_nbytes: int) -> int:
    """Return how many leading pages of *edge* stand in *ids* at *offset*.

    Cost: O(bytes compared) in memory comparisons, O(log pages) of them; nothing per token.
    """
    same, most = 0, min(len(edge), len(ids) - offset) // page_nbytes
    while same < most:
        middle = (same + most + 1) // 2
        if ids.startswith(edge[same * page_nbytes : middle * page_nbytes], offset + same * page_nbytes):
            same = middle
        else:
            most = middle - 1
    return same
