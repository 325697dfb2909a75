"""One Mooncake cluster for the whole run, a very small one, and more where a test takes them away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hicache_storage.testing.services.mooncake import HOW_TO_GET, LEAST_MEMORY_NBYTES, MooncakeService
from tests.services import require

_PATIENT_S = 120
"""After so long a node is given up: one may get no time on a busy machine."""


@pytest.fixture(scope="session")
def mooncake_cluster() -> Iterator[MooncakeService]:
    require("mooncake", MooncakeService.available(), HOW_TO_GET)
    with MooncakeService(silent_after_s=_PATIENT_S, abandoned_after_s=3) as service:
        yield service


@pytest.fixture(scope="session")
def mooncake_small_cluster() -> Iterator[MooncakeService]:
    """A cluster whose only node has the least memory that there can be."""
    require("mooncake", MooncakeService.available(), HOW_TO_GET)
    with MooncakeService(LEAST_MEMORY_NBYTES, eviction_ratio=1.0, silent_after_s=_PATIENT_S) as service:
        yield service


@pytest.fixture
def own_cluster() -> Iterator[MooncakeService]:
    """A cluster that a test may pause, kill and start again."""
    require("mooncake", MooncakeService.available(), HOW_TO_GET)
    with MooncakeService(64 << 20, silent_after_s=3) as service:
        yield service
