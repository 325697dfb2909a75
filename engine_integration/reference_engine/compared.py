"""The rank consensus checker around a rank's scheduler. Free of torch."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hicache_storage.engine_integration.consensus import Checker, ConsensusOptions
from hicache_storage.engine_integration.reference_engine.peers import Peers
from hicache_storage.errors import RankFailure

_GRACE_S = 5.0
"""How long a rank that fails, or is to be stopped, may take to hear from the others where they parted."""


@contextmanager
def compared(peers: Peers, last_words: Callable[[RankFailure], None]) -> Iterator[None]:
    """Have what this thread does inside compared with the other ranks, if the environment says so. A collective.

    Args:
        last_words: told why, before the process is ended because its scheduler cannot be stopped: it waits for a
            rank that is somewhere else.

    Raises:
        RankFailure: in place of another error, what the ranks had parted at before it.
    """
    options = ConsensusOptions.from_environment()
    if not options.checker:
        yield
        return
    (group,) = peers.new_groups(1)
    checker = Checker(group, peers.topology, options, on_stop=lambda failure: _end_soon(failure, last_words))
    try:
        with checker.guard():
            yield
    except BaseException as error:
        checker.close(_GRACE_S)
        failure = checker.failure
        if failure is not None and isinstance(error, Exception):
            raise failure from error
        raise
    checker.close()
    peers.drop_groups([group])


def _end_soon(failure: RankFailure, last_words: Callable[[RankFailure], None]) -> None:
    def end() -> None:
        last_words(failure)
        os._exit(1)

    timer = threading.Timer(_GRACE_S, end)
    timer.daemon = True
    timer.start()
