"""Environments of engines, made when the first test needs one; several processes may ask at once."""

from __future__ import annotations

import fcntl
import os

import pytest

from benchmarks.peers.environments import PEERS
from tests.engines.inside import say


def make_ready(config: pytest.Config, name: str) -> None:
    """Make the environment of the peer *name* unless it is there."""
    peer = PEERS[name]
    if peer.is_installed:
        return
    folder = os.open(peer.venv.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not peer.is_installed:
            say(config, f"making an environment with {peer.requirement} and torch: once, some minutes")
            peer.install()
    finally:
        os.close(folder)
