"""The part of Mooncake's SDK that is used here, with types, and its peculiarities in one place."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

from hicache_storage.backends.mooncake.errors import BACKEND
from hicache_storage.backends.mooncake.options import MooncakeOptions
from hicache_storage.errors import ConfigError, Unsupported

LONGEST_WAIT_S = 30.0
"""A transfer call that ends within this has ended all its transfers. The SDK stops waiting for a transfer after
60 s without stopping the transfer: it may fill or read the memory minutes after its call said that it failed."""


_MODULE = "mooncake.store"

_NONSENSE = bytes(64)
"""No request of the master's protocol: it hangs up at once."""

if importlib.util.find_spec("mooncake") is None:  # Importing it would load the SDK, before there are options.
    raise ModuleNotFoundError("No module named 'mooncake'", name="mooncake")


class BufferDescriptor(Protocol):
    """Where bytes lie in a node's memory."""

    size: int
    buffer_address: int
    transport_endpoint: str


class MemoryDescriptor(Protocol):
    """A copy in memory."""

    buffer_descriptor: BufferDescriptor


class ReplicaDescriptor(Protocol):
    """One copy of an object."""

    def is_memory_replica(self) -> bool: ...
    def is_disk_replica(self) -> bool: ...
    def get_memory_descriptor(self) -> MemoryDescriptor: ...
    def get_disk_descriptor(self) -> DiskDescriptor: ...


class DiskDescriptor(Protocol):
    """A copy on disk."""

    object_size: int


class ReplicateConfig(Protocol):
    """How an object is stored."""

    replica_num: int
    group_ids: list[str] | None


class Client(Protocol):
    """``mooncake.store.MooncakeDistributedStore``. Calls block; all but `setup` and `close` let other threads run Python."""

    def setup(self, config: dict[str, str]) -> int: ...
    def close(self) -> int: ...
    def register_buffer(self, buffer_ptr: int, size: int) -> int: ...
    def unregister_buffer(self, buffer_ptr: int) -> int: ...
    def batch_is_exist(self, keys: Sequence[str]) -> list[int]: ...
    def batch_remove(self, keys: Sequence[str], force: bool) -> list[int]: ...
    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]: ...
    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> list[list[list[int]]]: ...
    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]: ...
    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
    ) -> list[int]: ...
    def batch_get_session_end(self, keys: Sequence[str]) -> int: ...
    def batch_put_session_start(
        self, keys: Sequence[str], sizes: Sequence[int], config: ReplicateConfig
    ) -> list[int]: ...
    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_dst_offsets: Sequence[Sequence[int]],
    ) -> list[int]: ...
    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]: ...
    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]: ...


class Module(Protocol):
    """``mooncake.store``."""

    MooncakeDistributedStore: Callable[[], Client]
    ReplicateConfig: Callable[[], ReplicateConfig]


def load(deadline_s: float, log_level: str) -> Module:
    """Return the SDK. What it reads from the environment while it is loaded is the first call's for the process.

    Raises:
        ConfigError: it cannot be loaded.
    """
    if _MODULE not in sys.modules:
        os.environ |= {"MC_LOG_LEVEL": log_level, "MC_HANDSHAKE_CONNECT_TIMEOUT": str(silence_s(deadline_s))}
    try:
        return cast("Module", importlib.import_module(_MODULE))
    except ImportError as error:
        hint = "; on Debian and Ubuntu: apt-get install -y libibverbs1" if "ibverbs" in str(error) else ""
        reason = f"Mooncake's SDK cannot be loaded: {error}{hint}"
        raise ConfigError(reason) from error


def new_client(deadline_s: float, log_level: str) -> Client:
    """Return a client of the SDK, not set up yet, whose calls give up on a silent peer in time.

    The SDK reads these limits from the process's environment when it connects or begins to wait, so that the last
    client made sets them for all. They are the transfers' only limits: nothing can stop a call from outside.

    Raises:
        ConfigError: as `load`.
        Unsupported: this process was forked from one that used the SDK; every call would hang.
    """
    sdk = load(deadline_s, log_level)
    if _owner() != os.getpid():
        reason = "the process that this one was forked from uses Mooncake, whose SDK does not survive a fork"
        raise Unsupported(f"{reason}; start workers with spawn or exec", backend=BACKEND, op="connect")
    transfer_s, rpc_ms = str(silence_s(deadline_s)), str(int(deadline_s * 1000))
    os.environ |= {
        "MC_TCP_PROGRESS_TIMEOUT_SEC": transfer_s,
        "MC_TCP_STATUS_TIMEOUT_SEC": transfer_s,
        "MC_RPC_TIMEOUT_MS": rpc_ms,
        "MC_RPC_CONNECT_TIMEOUT_MS": rpc_ms,
        "MC_STORE_CLIENT_SETUP_RETRIES": "3",
    }
    return sdk.MooncakeDistributedStore()


def silence_s(deadline_s: float) -> int:
    """Return after how many seconds without a byte a transfer fails: half of the deadline, at least 1.

    A read into registered memory has to wait for it, and should be over before the deadline.
    """
    return max(1, int(deadline_s / 2))


def look_for_master(address: str, within_s: float) -> None:
    """The master answers. Ask before `set_up`: with one that does not, that stops every Python thread for seconds.

    Raises:
        OSError: it does not.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), within_s) as connection:
        connection.sendall(_NONSENSE)
        with contextlib.suppress(ConnectionResetError):
            connection.recv(1)


def set_up(client: Client, options: MooncakeOptions) -> int:
    """Connect *client*; return the SDK's code. No other thread runs Python before it returns."""
    return client.setup(
        {
            "local_hostname": options.local_hostname,
            "metadata_server": options.metadata_server,
            "global_segment_size": str(options.global_segment_nbytes),
            "local_buffer_size": "0",
            "protocol": options.protocol,
            "rdma_devices": options.device_name,
            "master_server_addr": options.master,
            "tenant_id": options.tenant_id,
        }
    )


@functools.cache
def _owner() -> int:
    """Return the process that made the first client here or before the fork."""
    return os.getpid()


class Placement(NamedTuple):
    """Where one copy of an object lies.

    Two that are equal are one copy of one writing, unless the object was removed and written anew in the same place
    between two look-ups: the SDK gives writings no other mark. Names are of contents, so that the bytes are the same.
    """

    nbytes: int
    endpoint: str
    address: int


def placements(client: Client, names: Sequence[str]) -> dict[str, frozenset[Placement]]:
    """Return where the objects that are there and complete lie. Leases them."""
    # The SDK's descriptors point into each other without keeping each other alive: each needs a name of its own.
    found: dict[str, frozenset[Placement]] = {}
    replies = client.batch_get_replica_desc(names)
    for name, descriptors in replies.items():
        copies = frozenset(placement for copy in descriptors if (placement := _placement(copy)) is not None)
        if copies:
            found[name] = copies
    return found


def _placement(copy: ReplicaDescriptor) -> Placement | None:
    if copy.is_memory_replica():
        memory = copy.get_memory_descriptor()
        buffer = memory.buffer_descriptor
        return Placement(buffer.size, buffer.transport_endpoint, buffer.buffer_address)
    if copy.is_disk_replica():
        disk = copy.get_disk_descriptor()
        return Placement(disk.object_size, "disk", 0)
    return None
