"""One Mooncake cluster for the whole run, a very small one, and more where a test takes them away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hicache_storage.testing.services.mooncake import HOW_TO_GET, LEAST_MEMORY_NBYTES, MooncakeService
from tests.services import require


@pytest.fixture(scope="session")
def mooncake_cluster() -> Iterator[MooncakeService]:
    require("mooncake", MooncakeService.available(), HOW_TO_GET)
    with MooncakeService() as service:
        yield service


@pytest.fixture(scope="session")
def mooncake_small_cluster() -> Iterator[MooncakeService]:
    """A cluster whose only node has the least memory that there can be."""
    require("mooncake", MooncakeService.available(), HOW_TO_GET)
    with MooncakeService(LEAST_MEMORY_NBYTES, eviction_ratio=1.0) as service:
        yield service


@pytest.fixture
def own_cluster() -> Iterator[MooncakeService]:
    """A cluster that a test may pause, kill and start again."""
    require("mooncake", MooncakeService.available(), HOW_TO_GET)
    with MooncakeService(64 << 20, silent_after_s=3) as service:
        yield service
