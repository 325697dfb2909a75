"""What one process has in one cluster: a client of the SDK, its threads and its memory, for the life of the process.

All stores with the same settings share it, and closing a store does not end it: the SDK's `close` stops every
Python thread for a second, and ends the process with a segmentation fault if another thread is inside a call.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hicache_storage.backends.mooncake.buffers import Regions, Slot, Slots
from hicache_storage.backends.mooncake.errors import OK, unavailable
from hicache_storage.backends.mooncake.options import MooncakeOptions
from hicache_storage.backends.mooncake.peers import Peers
from hicache_storage.backends.mooncake.sdk import (
    LONGEST_WAIT_S,
    Client,
    load,
    look_for_master,
    new_client,
    set_up,
    silence_s,
)
from hicache_storage.backends.mooncake.workers import Workers
from hicache_storage.types import ReadableBuffer, nbytes_of

_DIRECT_MIN_NBYTES = 16 << 10
_DIRECT_MIN_NBYTES_TCP = 128 << 10
"""A smaller buffer goes through a slot together with its neighbours: a transfer of its own costs more than the copy."""


class Engine:
    """Safe to use from many threads; not in a forked process.

    Raises:
        ConfigError: the SDK cannot be loaded.
    """

    def __init__(self, options: MooncakeOptions) -> None:
        self.sdk = load(options.deadline_s, options.log_level)
        self._options = options
        self._direct_min_nbytes = _DIRECT_MIN_NBYTES_TCP if options.protocol == "tcp" else _DIRECT_MIN_NBYTES
        self._connecting = threading.Lock()
        self._client: Client | None = None
        self._claiming = threading.Lock()
        self._claimed: set[str] = set()
        self._slots = Slots(options.local_buffer_nbytes, options.io_threads)
        self.workers = Workers(options.io_threads)
        self.peers = Peers()
        self.regions = Regions()
        # Who leaves the process while a thread is inside the SDK gets a segmentation fault.
        atexit.register(self.workers.finish, 2 * silence_s(options.deadline_s))

    def client(self, op: str, until: float) -> Client:
        """Return the connected client.

        Raises:
            StoreUnavailable: the master does not answer.
            Unsupported: see `sdk.new_client`.
        """
        if self._client is None:
            with self._connecting:
                if self._client is None:
                    self._client = self._connect(op, until)
        return self._client

    @contextmanager
    def slot(self, op: str, until: float) -> Iterator[Slot]:
        """Give a slot for transfers. If the block lasts too long, a transfer may go on, and the slot rests.

        Raises:
            StoreUnavailable: none is free before *until*.
        """
        slot = self._slots.take(until)
        if slot is None:
            raise unavailable("all transfer buffers are taken by transfers that do not end", op=op)
        began_s = time.monotonic()
        try:
            yield slot
        finally:
            self._slots.give_back(slot, in_doubt=time.monotonic() - began_s > LONGEST_WAIT_S)

    @contextmanager
    def session(self, client: Client, names: set[str]) -> Iterator[set[str]]:
        """Open a session for reading *names*; give those for which it worked.

        The SDK knows a session only by the object's name, so that no two calls may have one of the same name:
        for names that somebody else is reading there is none.
        """
        with self._claiming:
            mine = names - self._claimed
            self._claimed |= mine
        asked = sorted(mine)
        try:
            codes = client.batch_get_session_start(asked) if asked else []
            yield {name for name, code in zip(asked, codes, strict=True) if code == OK}
        finally:
            try:
                if asked:
                    client.batch_get_session_end(asked)
            finally:
                with self._claiming:
                    self._claimed -= mine

    def direct_address(self, buffer: ReadableBuffer) -> int | None:
        """Return where *buffer* lies if the SDK should touch it itself."""
        return self.regions.address_of(buffer) if nbytes_of(buffer) >= self._direct_min_nbytes else None

    def register(self, address: int, nbytes: int) -> None:
        """Transfers from and into a range go directly, from the next connection on if there is none."""
        with self._connecting:
            if self.regions.add(address, nbytes) and self._client is not None:
                self._register(self._client, address, nbytes)

    def unregister(self, address: int, nbytes: int) -> None:
        """As if it had not been registered, unless somebody else has too."""
        with self._connecting:
            if self.regions.remove(address, nbytes) and self._client is not None:
                self._client.unregister_buffer(address)

    def _register(self, client: Client, address: int, nbytes: int) -> None:
        if client.register_buffer(address, nbytes):
            self.regions.remove(address, nbytes)

    def _connect(self, op: str, until: float) -> Client:
        options = self._options
        try:
            look_for_master(options.master, max(0.001, until - time.monotonic()))
        except OSError as error:
            raise unavailable(f"no Mooncake master at {options.master}: {error}", op=op) from error
        client = new_client(options.deadline_s, options.log_level)
        code = set_up(client, options) or client.register_buffer(self._slots.address, self._slots.nbytes)
        if code:
            reason = f"Mooncake cannot be set up ({code}): master {options.master}, metadata {options.metadata_server}"
            raise unavailable(reason, op=op)
        for address, nbytes in self.regions.held():
            self._register(client, address, nbytes)
        return client


def engine_for(options: MooncakeOptions) -> Engine:
    """Return this process's engine for what *options* say of the cluster, the memory and the deadline."""
    settings = dataclasses.replace(
        options, url=None, master_server_address=options.master, master_metrics_port=1, replica_num=1,
        group_objects=True, direct_reads=True, key_prefix="",
    )  # fmt: skip
    return _engine(settings, os.getpid())


@functools.cache
def _engine(settings: MooncakeOptions, _pid: int) -> Engine:
    return Engine(settings)
