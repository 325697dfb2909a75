"""Connections that wait for their next use, by server."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hicache_storage.backends.redis.connect import Address
from hicache_storage.backends.redis.errors import BACKEND
from hicache_storage.backends.redis.wire import Patience, Wire
from hicache_storage.errors import StoreUnavailable

_MAX_IDLE = 64


@dataclass(frozen=True, slots=True)
class _Idle:
    """The idle connections of one process."""

    pid: int = field(default_factory=os.getpid)
    wires: dict[Address, deque[Wire]] = field(default_factory=dict)


class Pool:
    """Lends every user a connection of its own; makes one when none is idle.

    Without a lock: a fork in another thread's critical section would leave it locked in the child.
    Appending to a deque and taking from it are atomic. A forked child closes its copies of its
    parent's connections, which the parent does not notice, and makes its own.
    """

    def __init__(self, connect: Callable[[Address, Patience], Wire]) -> None:
        self._connect = connect
        self._idle = _Idle()
        self._closed = False

    @contextmanager
    def lease(self, address: Address, patience: Patience) -> Iterator[Wire]:
        """Lend a connection. It is kept for the next user if its last answer was read to the end, else closed.

        Raises:
            StoreError, ConnectionLost: there is none and none can be made.
        """
        wire = self._take(address) or self._connect(address, patience)
        wire.patience = patience
        kept = False
        try:
            yield wire
            kept = wire.in_order
        finally:
            if kept:
                self._give_back(address, wire)
            else:
                wire.close()

    def close(self) -> None:
        """No connection is idle any more; those that are lent are closed when they come back."""
        self._closed = True
        for wires in list(self._of_this_process().values()):
            _drain(wires)

    def _take(self, address: Address) -> Wire | None:
        if self._closed:
            raise StoreUnavailable("the store is closed", backend=BACKEND, op="connect")
        wires = self._of_this_process().get(address)
        while wires:
            try:
                wire = wires.pop()
            except IndexError:
                break
            if wire.is_idle():
                return wire
            wire.close()
        return None

    def _give_back(self, address: Address, wire: Wire) -> None:
        wires = self._of_this_process().setdefault(address, deque())
        if len(wires) >= _MAX_IDLE:
            wire.close()
            return
        wires.append(wire)
        if self._closed:
            _drain(wires)

    def _of_this_process(self) -> dict[Address, deque[Wire]]:
        idle = self._idle
        if idle.pid != os.getpid():
            self._idle = _Idle()
            for wires in idle.wires.values():
                _drain(wires)
            idle = self._idle
        return idle.wires


def _drain(wires: deque[Wire]) -> None:
    while wires:
        try:
            wires.pop().close()
        except IndexError:
            return
