"""What holds for every test: a fixed, printed seed, and no configuration that the machine happens to have."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
from collections.abc import Iterator

import pytest

_SEED = int(os.environ.get("HICACHE_TEST_SEED", "20260801"))
_FOR_TESTS = ("HICACHE_TEST_", "HICACHE_REQUIRE")


def pytest_configure() -> None:
    """Undo what nohup, or a shell's background, has set: processes would inherit it, and never hear a signal."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if importlib.util.find_spec("hypothesis") is not None:  # The environments of engines have none.
        _steady_examples()


def _steady_examples() -> None:
    """Every run tries the same examples, each of which may take as long as a busy machine needs."""
    from hypothesis import HealthCheck, settings  # noqa: PLC0415 - not there in every environment

    settings.register_profile(
        "hicache", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("hicache")


def pytest_report_header() -> str:
    return f"random seed: {_SEED} (HICACHE_TEST_SEED)"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(_SEED)


@pytest.fixture
def rng() -> random.Random:
    """A generator of this test's own, seeded like the run."""
    return random.Random(_SEED)


@pytest.fixture(autouse=True, scope="session")
def _no_ambient_configuration() -> Iterator[None]:
    """Options of a store that the developer's shell has set must not reach a test or a process it starts."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("HICACHE_") and not name.startswith(_FOR_TESTS):
                patch.delenv(name)
        yield
