"""Sizes of tiers: tokens or bytes, whole pages."""

from __future__ import annotations

import pytest

from hicache_storage.engine_integration.replay import TierSize
from hicache_storage.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "pages"),
    [("640tokens", 10), ("1k tokens", 15), ("1Ki Tokens", 16), ("700tokens", 10)],
)
def test_tokens_are_counted_in_whole_pages(text: str, pages: int) -> None:
    assert TierSize.parse(text).num_pages("host", page_tokens=64, page_nbytes=1) == pages


@pytest.mark.parametrize(("text", "pages"), [("1MiB", 10), ("1048576", 10), ("100000", 1), ("1MB", 10)])
def test_bytes_are_counted_in_whole_pages(text: str, pages: int) -> None:
    assert TierSize.parse(text).num_pages("host", page_tokens=64, page_nbytes=100_000) == pages


@pytest.mark.parametrize("text", ["", "many", "5 pages", "-3", "1..5tokens", "tokens"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected tokens, such as 300ktokens, or bytes, such as 64GiB"):
        TierSize.parse(text)


@pytest.mark.parametrize(("text", "page"), [("63tokens", "64 tokens"), ("99", "100 bytes")])
def test_less_than_a_page_is_refused(text: str, page: str) -> None:
    with pytest.raises(ConfigError, match=f"host size {text}: less than one page of {page}"):
        TierSize.parse(text).num_pages("host", page_tokens=64, page_nbytes=100)
