"""The loop of a rank: what it is told, a step, what it tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeAlias

import msgspec

from hicache_storage.engine_integration.reference_engine.engine import EngineRank
from hicache_storage.engine_integration.reference_engine.messages import Command, Event
from hicache_storage.engine_integration.reference_engine.peers import Peers

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.25
_LONGEST_WAITING_PAUSE_S = 0.01
"""Idle ranks look around less and less often; requests that wait for the store are looked after more often."""

Inbox: TypeAlias = SimpleQueue[bytes]
"""Encoded commands, put there by whoever hears them."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Command]).decode


def serve(engine: EngineRank, peers: Peers, inbox: Inbox, emit: Callable[[Event], None]) -> None:
    """Work until the engine was told to shut down, then close it. Every rank calls this.

    Args:
        inbox: commands, each encoded by `messages.encode`; the first rank's counts.
        emit: called with each event, on the first rank.
    """
    is_first = peers.tp_rank == peers.pp_rank == 0
    pause_s = 0.0
    while not engine.is_done:
        told = _take(inbox, pause_s) if is_first else []
        shared = peers.share(_joined(told))
        computed = engine.step(_decode(shared) if shared else [])
        _tell(engine, emit if is_first else None)
        if computed or told:
            pause_s = 0.0
        else:
            longest = _LONGEST_PAUSE_S if engine.is_idle else _LONGEST_WAITING_PAUSE_S
            pause_s = min(longest, 2 * pause_s or _FIRST_PAUSE_S)
    engine.close()
    _tell(engine, emit if is_first else None)


def _take(inbox: Inbox, pause_s: float) -> list[bytes]:
    """Return what is in *inbox*; wait up to *pause_s* for the first of it."""
    told = []
    try:
        told.append(inbox.get(timeout=pause_s) if pause_s else inbox.get_nowait())
        while True:
            told.append(inbox.get_nowait())
    except Empty:
        return told


def _joined(commands: Sequence[bytes]) -> bytes:
    """Return a message of all *commands*; none for no command."""
    return _encode([msgspec.Raw(command) for command in commands]) if commands else b""


def _tell(engine: EngineRank, emit: Callable[[Event], None] | None) -> None:
    for event in engine.take_events():
        if emit is not None:
            emit(event)
