"""What the tests of the controller share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def busy_threads() -> Iterator[None]:
    """Let threads take turns far more often than usual, so that a walk of quick steps meets them at work."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)
