"""How many tokens a request had, and how many of them some tier had already."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one prompt and its answer, or of several together."""

    prompt_tokens: int
    new_tokens: int = 0
    cached_device: int = 0
    cached_host: int = 0
    cached_store: int = 0

    @property
    def cached_by_tier(self) -> dict[str, int]:
        """Tokens of the prompt that were not computed, by the tier that had them."""
        return {"device": self.cached_device, "host": self.cached_host, "store": self.cached_store}

    def one_more(self) -> Usage:
        """Return the usage with one more new token."""
        return replace(self, new_tokens=self.new_tokens + 1)

    def document(self) -> dict[str, object]:
        """Return what OpenAI's ``usage`` says; ``cached_tokens_by_tier`` is ours."""
        by_tier = self.cached_by_tier
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.new_tokens,
            "total_tokens": self.prompt_tokens + self.new_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(by_tier.values()), "cached_tokens_by_tier": by_tier},
        }

    def sglang_details(self) -> dict[str, int]:
        """Return the cached tokens as SGLang's ``cached_tokens_details`` names them."""
        return {"device": self.cached_device, "host": self.cached_host, "storage": self.cached_store}


def total(usages: Iterable[Usage]) -> Usage:
    """Return the usage of several requests together."""
    listed = list(usages)
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in listed),
        new_tokens=sum(usage.new_tokens for usage in listed),
        cached_device=sum(usage.cached_device for usage in listed),
        cached_host=sum(usage.cached_host for usage in listed),
        cached_store=sum(usage.cached_store for usage in listed),
    )
