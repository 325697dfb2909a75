"""How large a simulated tier is: so many tokens, or so many bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hicache_storage.config import parse_nbytes
from hicache_storage.errors import ConfigError

_TOKENS = re.compile(r"\s*([\d.]+)\s*([kmg]i?)?\s*tokens?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TierSize:
    """The room of a tier; `text` is how it was given."""

    amount: int
    is_tokens: bool
    text: str

    @classmethod
    def parse(cls, text: str) -> TierSize:
        """Return the size written as ``300000tokens``, ``300k tokens``, ``64GiB`` or ``68719476736``.

        Raises:
            ConfigError: *text* is none of these.
        """
        match = _TOKENS.fullmatch(text)
        try:
            amount = parse_nbytes(match[1] + (match[2] or "") if match else text)
        except ValueError:
            raise ConfigError(f"size {text!r}: expected tokens, such as 300ktokens, or bytes, such as 64GiB") from None
        return cls(amount, match is not None, text)

    def num_pages(self, tier: str, *, page_tokens: int, page_nbytes: int) -> int:
        """Return how many whole pages fit.

        Raises:
            ConfigError: not one does.
        """
        pages = self.amount // (page_tokens if self.is_tokens else page_nbytes)
        if pages < 1:
            page = f"{page_tokens} tokens" if self.is_tokens else f"{page_nbytes} bytes"
            raise ConfigError(f"{tier} size {self.text}: less than one page of {page}")
        return pages
