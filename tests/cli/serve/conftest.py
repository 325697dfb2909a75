"""A server for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.serve.running_server import RunningServer, running


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server on loopback without an admin token or a store."""
    with running() as server:
        yield server
