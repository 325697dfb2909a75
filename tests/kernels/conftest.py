"""Kernels for these tests: `impl` runs a test for each implementation."""

from __future__ import annotations

import pytest

from hicache_storage.kernels import Impl
from tests.kernels.triton_modules import load_kernels, require_triton


@pytest.fixture(params=["reference", "triton"])
def impl(request: pytest.FixtureRequest) -> Impl:
    """Each implementation by name; Triton runs in its interpreter where there is no GPU."""
    name: Impl = request.param
    if name == "triton":
        require_triton()
        load_kernels()
    return name
