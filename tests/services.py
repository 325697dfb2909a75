"""What happens where a real service is not installed: a skip, or a failure if the run promised to have it."""

from __future__ import annotations

import os

import pytest


def require(name: str, available: bool, how_to_get: str) -> None:
    """Return if the service is *available*; else skip, or fail where ``HICACHE_REQUIRE`` (comma list) names it."""
    if available:
        return
    reason = f"{name} is not available: {how_to_get}"
    if name in os.environ.get("HICACHE_REQUIRE", "").split(","):
        pytest.fail(f"{reason} (HICACHE_REQUIRE promises it)")
    pytest.skip(reason)
